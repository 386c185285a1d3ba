"""Plug-ins whose import does not come to its end: nothing of them is known afterwards, and they can be loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core import plugins, registry
from cachemark.core.errors import BadPlugin

FILE = """
from cachemark.core import registry
from cachemark.methods.window import Window

@registry.methods.add("half_known")
class HalfKnown(Window):
    pass

"""


@pytest.mark.parametrize(("end", "error"), [("raise KeyboardInterrupt", KeyboardInterrupt), ("raise ValueError", BadPlugin)])
def test_an_interrupted_import_leaves_nothing_behind(end: str, error: type[BaseException], tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(FILE + end)
    with pytest.raises(error):
        plugins.load(file)
    assert "half_known" not in registry.methods
    file.write_text(FILE + "del registry")
    assert plugins.load(file) == ["half_known"]
