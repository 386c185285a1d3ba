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
        with pytest.raises(SystemExit) as ended:
            run_command(cards)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


def test_both_pages_with_a_method_of_a_plug_in_and_an_anchor_that_was_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "anchors").mkdir()
    shipped = anchors.shipped()["mar-l"]
    table = {"model": "mar-l", "metric": shipped.metric, "expected": 1.78, "tolerance": 0.05, "source": shipped.source, "sampling": {}}
    stored = {"format": 1, "anchor": table, "weights": "a/b", "value": 1.7931, "case": {}, "facts": {}}
    (tmp_path / "anchors" / "mar-l.json").write_text(json.dumps(stored))
    code, output = call(capsys, tmp_path / "made", "--plugin", tmp_path / "mine.py", "--anchors", tmp_path / "anchors")
    assert code == 0
    files = [tmp_path / "made" / name for name in ("models.md", "methods.md")]
    assert output.splitlines() == list(map(str, files))
    assert sorted((tmp_path / "made").iterdir()) == sorted(files)
    models, methods = (file.read_text(encoding="utf-8") for file in files)
    assert "### `tiny-var`" in models
    for words in ("## `lazymar`", "## `mine`\n\nKeeps what I like.", "| source | my notes |", "| `size` | `3` | no; a guess |",
                  "| 1.78 | `mar-l` | 256 passes | README of LTH14/mar, models | 1.793 |",
                  "| 1.93 | `mar-l` | 64 passes | LazyMAR, arXiv 2503.12450, Table 1 | not yet; the full cache of this model is anchored |",
                  "| 1.55 | `mar-h` | 256 passes | README of LTH14/mar, models | not yet: no real weights |"):  # fmt: skip
        assert words in methods, words


def test_a_damaged_anchor_is_an_error_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mar-l.json").write_text("{")
    code, output = call(capsys, tmp_path / "made", "--anchors", tmp_path)
    assert code == 2
    assert "mar-l.json is cut off" in output
    assert "Traceback" not in output
    assert not (tmp_path / "made").exists()
