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


RENAMED = """
from dataclasses import dataclass
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting

class Base(Evicting):
    {name} = "token"

@registry.methods.add("renamed")
@dataclass
class Renamed(Base):
    share: float = {share}
"""


def test_a_refused_plug_in_leaves_nothing_behind_and_loads_once_mended(tmp_path: Path) -> None:
    file = tmp_path / "renamed.py"
    file.write_text(RENAMED.format(name="edge", share=0.5))
    for _ in range(2):
        with pytest.raises(BadPlugin, match="'renamed' defines edge"):
            plugins.load(file)
        assert "renamed" not in registry.methods
    file.write_text(RENAMED.format(name="evict_after", share=0.5))
    assert plugins.load(file) == ["renamed"]


def test_an_edited_plug_in_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    """Also where it was edited in the same second, to the same length, and back again."""
    file = tmp_path / "renamed.py"
    keys = []
    for share in (0.5, 0.7, 0.5):
        file.write_text(RENAMED.format(name="evict_after", share=share))
        assert plugins.load(file) == plugins.load(file) == ["renamed"]
        cls = registry.methods.get("renamed")
        assert cls().share == share
        keys.append(plugins.needs(cls))
    assert keys[0] == keys[2] != keys[1]
    file.write_text(RENAMED.format(name="evict_after", share=0.5).replace('"renamed"', '"other"'))
    assert plugins.load(file) == ["other"]
    assert "renamed" not in registry.methods
    file.write_text("raise ValueError")
    with pytest.raises(BadPlugin):
        plugins.load(file)
    assert "other" in registry.methods
