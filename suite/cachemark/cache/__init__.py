"""Storage of keys and values: layouts, slots, codecs and random streams."""
