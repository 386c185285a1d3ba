"""Building blocks of the methods that work on masked models."""
