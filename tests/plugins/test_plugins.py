"""Plug-ins that are refused, with the file and line that explain it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.methods.registry import METHODS
from cachemark.plugins import loading as plugins

METHOD = """
from dataclasses import dataclass
import cachemark as cm
from cachemark.methods.base.evicting import Evicting

@cm.method("{name}")
@dataclass
class Old(Evicting):
    {body}
"""


@pytest.mark.parametrize("line", ["import nowhere_at_all", "from cachemark.cache.slot import Nothing", "raise ImportError('mine')"])
def test_any_other_import_error_is_told_as_it_is(line: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"{line}\n")
    with pytest.raises(BadPlugin, match=r"other\.py:1") as caught:
        plugins.load(tmp_path / "other.py")
    assert caught.value.remedy.startswith("Fix the file")


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Callable[[str], BadPlugin]]:
    """The error with which a plug-in of this text, whose method is called ``old``, is refused."""

    def refused(text: str) -> BadPlugin:
        (tmp_path / "old.py").write_text(text)
        with pytest.raises(BadPlugin) as caught:
            plugins.load(tmp_path / "old.py")
        return caught.value

    yield refused
    METHODS._entries.pop("old", None)


def test_a_name_that_its_base_class_never_had_is_its_own(tmp_path: Path) -> None:
    plain = METHOD.replace("cachemark.methods.base.evicting import Evicting", "cachemark.contract.method import Method")
    (tmp_path / "own.py").write_text(plain.replace("(Evicting)", "(Method)").format(name="own", body="held = 3"))
    assert plugins.load(tmp_path / "own.py") == ["own"]


def test_a_class_that_leaves_out_what_its_base_class_asks_for_is_refused(refused: Callable[[str], BadPlugin]) -> None:
    partial = METHOD.replace("cachemark.methods.base.evicting import Evicting", "cachemark.methods.base.partial import Partial")
    error = refused(partial.replace("(Evicting)", "(Partial)").format(name="old", body="def refreshes(self, step): return True"))
    assert "method 'old' does not define check, choose, fit, keep, selects, spans" in error.message
