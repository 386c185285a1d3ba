"""What every method owes, over method × codec × kind of attention. New methods join through the registry."""
