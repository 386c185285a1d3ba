"""Measurements on a GPU that is available for half an hour, in stages; see `__main__.py`."""
