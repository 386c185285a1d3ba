"""The small model as a plug-in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.plugins import loading as plugins
from support.stages import forgetting


@pytest.fixture(scope="module")
def dot(folder: Path) -> Iterator[Path]:
    """The folder of the small model, whose plug-in is loaded while the tests of a file run."""
    with forgetting():
        plugins.load(folder / "dot.py")
        yield folder
