"""Decoders that draw several tokens in one forward pass, one per file."""
