"""``python -m tools.cards``: both pages, with methods of a plug-in where one is given, and anchors where some were reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.gate import anchors
from cachemark.methods.registry import METHODS
from tools.cards.__main__ import cards
from tools.command import run_command

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

import cachemark as cm
from cachemark.contract.method import Method


@cm.method("mine")
@dataclass
class Mine(Method):
    """Keeps what I like. Differs from everything: it is mine."""

    name: ClassVar[str] = "mine"
    source: ClassVar[str] = "my notes"
    unstated: ClassVar = {"size": "a guess"}

    size: int = 3
'''


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    METHODS._entries.pop("mine", None)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and output of the tool."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["cards", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            run_command(cards)
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out + told.err


def pages(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_both_pages_are_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = call(capsys, tmp_path / "made")
    assert code == 0
    assert output.splitlines() == [str(tmp_path / "made" / name) for name in ("models.md", "methods.md")]
    found = pages(tmp_path / "made")
    assert set(found) == {"models.md", "methods.md"}
    assert "### `tiny-var`" in found["models.md"]
    assert "## `lazymar`" in found["methods.md"]
    assert "mine" not in found["methods.md"]


def test_a_method_of_a_plug_in_has_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert call(capsys, tmp_path / "made", "--plugin", tmp_path / "mine.py")[0] == 0
    page = pages(tmp_path / "made")["methods.md"]
    for words in ("## `mine`\n\nKeeps what I like.", "| source | my notes |", "| `size` | `3` | no; a guess |", "it is mine."):
        assert words in page, words


def test_an_anchor_that_was_reached_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "| 1.78 | `mar-l` | 256 passes | README of LTH14/mar, models | {} |"
    assert call(capsys, tmp_path / "before", "--anchors", tmp_path / "anchors")[0] == 0
    assert row.format("not yet: no real weights") in pages(tmp_path / "before")["methods.md"]
    shipped = anchors.shipped()["mar-l"]
    table = {"model": "mar-l", "metric": shipped.metric, "expected": 1.78, "tolerance": 0.05, "source": shipped.source, "sampling": {}}
    (tmp_path / "anchors").mkdir()
    stored = {"format": 1, "anchor": table, "weights": "a/b", "value": 1.7931, "case": {}, "facts": {}}
    (tmp_path / "anchors" / "mar-l.json").write_text(json.dumps(stored))
    assert call(capsys, tmp_path / "after", "--anchors", tmp_path / "anchors")[0] == 0
    page = pages(tmp_path / "after")["methods.md"]
    assert row.format("1.793") in page
    assert "| 1.93 | `mar-l` | 64 passes | LazyMAR, arXiv 2503.12450, Table 1 | not yet; the full cache of this model is anchored |" in page
    assert "| 1.55 | `mar-h` | 256 passes | README of LTH14/mar, models | not yet: no real weights |" in page


def test_a_damaged_anchor_is_an_error_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mar-l.json").write_text("{")
    code, output = call(capsys, tmp_path / "made", "--anchors", tmp_path)
    assert code == 2
    assert "mar-l.json is cut off" in output
    assert "Traceback" not in output
    assert not (tmp_path / "made").exists()
