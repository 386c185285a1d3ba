"""Storage of keys and values: layouts, layer caches, codecs and random streams."""
