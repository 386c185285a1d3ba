"""Order of tests, and their fixtures: the same for the package and for scripts."""

from support.collection import pytest_collection, pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection", "pytest_collection_modifyitems", "pytest_configure"]
