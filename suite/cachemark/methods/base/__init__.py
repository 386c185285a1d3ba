"""Base classes of methods."""
