"""Modules that take seconds to import, imported when a test first uses them, so that collecting stays fast."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """The module ``name`` as far as reading its attributes goes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own at every name of a file
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def later(name: str) -> Any:
    """A module imported at its first use. The file of tests that asks for one that is not installed is skipped."""
    package = name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return Later(name)
