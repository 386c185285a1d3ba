"""Parallel decoders, one per file."""
