"""Published sizes and speeds of caches beside this package's arithmetic: ``python -m benchmarks.papers``."""
