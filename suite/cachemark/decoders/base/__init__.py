"""Bases that decoders share."""
