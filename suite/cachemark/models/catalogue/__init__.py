"""The models that can be named in a plan, one family per file."""
