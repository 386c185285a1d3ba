"""The tools are of the repository, not of the wheel, and no command of the wheel calls them."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
from setuptools import find_namespace_packages, find_packages

from cachemark.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def test_the_wheel_leaves_the_tools_out() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]["find"]
    (where,) = settings.pop("where")
    packed = find_packages(str(ROOT / where), **settings)
    assert {"cachemark", "cachemark.core", "cachemark.cli", "cachemark.models.tiny"} <= set(packed)
    left_out = set(find_namespace_packages(str(ROOT / where), include=["cachemark.tools*"]))
    assert {"cachemark.tools", "cachemark.tools.train", "cachemark.tools.cards"} <= left_out
    assert not left_out & set(packed)


def test_no_command_is_a_tool() -> None:
    assert not {"train", "cards"} & COMMANDS.keys()


@pytest.mark.parametrize("tool", ["train", "cards"])
def test_a_tool_is_run_as_a_module(tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``python -m`` runs it, without a process that imports torch anew."""
    monkeypatch.setattr("sys.argv", [tool, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"cachemark.tools.{tool}", run_name="__main__", alter_sys=True)
    assert not left.value.code
    assert f"Usage: python -m cachemark.tools.{tool}" in capsys.readouterr().out
