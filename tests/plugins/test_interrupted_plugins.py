"""Plug-ins whose import is interrupted leave nothing behind and can be loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.methods.registry import METHODS
from cachemark.plugins import loading as plugins

FILE = """
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("half_known")
class HalfKnown(Window):
    pass

"""


@pytest.mark.parametrize(("end", "error"), [("raise KeyboardInterrupt", KeyboardInterrupt), ("raise ValueError", BadPlugin)])
def test_an_interrupted_import_leaves_nothing_behind(end: str, error: type[BaseException], tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(FILE + end)
    with pytest.raises(error):
        plugins.load(file)
    assert "half_known" not in METHODS
    file.write_text(FILE + "del cm")
    assert plugins.load(file) == ["half_known"]


RENAMED = """
from dataclasses import dataclass
import cachemark as cm
from cachemark.methods.base.evicting import Evicting

class Base(Evicting):
    {name} = "token"

@cm.method("renamed")
@dataclass
class Renamed(Base):
    share: float = {share}
"""


def test_a_refused_plug_in_leaves_nothing_behind_and_loads_once_mended(tmp_path: Path) -> None:
    file = tmp_path / "renamed.py"
    file.write_text(RENAMED.format(name="evict_after", share="float('nan')"))
    for _ in range(2):
        with pytest.raises(BadPlugin, match=r"share = nan is not finite"):
            plugins.load(file)
        assert "renamed" not in METHODS
    file.write_text(RENAMED.format(name="evict_after", share=0.5))
    assert plugins.load(file) == ["renamed"]


def test_an_edited_plug_in_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    """Also where it was edited in the same second, to the same length, and back again."""
    file = tmp_path / "renamed.py"
    keys = []
    for share in (0.5, 0.7, 0.5):
        file.write_text(RENAMED.format(name="evict_after", share=share))
        assert plugins.load(file) == plugins.load(file) == ["renamed"]
        cls = METHODS.get("renamed")
        assert cls().share == share
        keys.append(plugins.needs(cls))
    assert keys[0] == keys[2] != keys[1]
    file.write_text(RENAMED.format(name="evict_after", share=0.5).replace('"renamed"', '"other"'))
    assert plugins.load(file) == ["other"]
    assert "renamed" not in METHODS
    file.write_text("raise ValueError")
    with pytest.raises(BadPlugin):
        plugins.load(file)
    assert "other" in METHODS
