"""Published sizes and speeds of caches, compared with computed ones: ``python -m benchmarks.papers``."""
