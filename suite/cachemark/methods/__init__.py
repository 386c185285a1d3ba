"""Cache methods, one per file. Importing this package registers them."""

from . import full, h2o, linear, random, rkv, streaming, window

__all__ = ["full", "h2o", "linear", "random", "rkv", "streaming", "window"]
