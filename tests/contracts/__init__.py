"""Contract tests over method × codec × kind of attention. New methods join through the registry."""
