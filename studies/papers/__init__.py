"""Published sizes and speeds of caches, compared with computed ones: ``python -m studies.papers``."""
