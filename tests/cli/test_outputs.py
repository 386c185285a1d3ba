"""Files that commands write: older outputs are replaced, everything else is left as it is."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from support.stages import Stage, call

from .test_commands import good

WRITING = (
    ("report",), ("export", "csv"), ("export", "markdown"), ("export", "latex"), ("export", "grid"),
    ("export", "github", "--comment"), ("export", "github", "--summary"), ("run", "{plan}", "--report"),
)


def arguments(stage: Stage, command: tuple[str, ...], target: Path) -> list[object]:
    return [*(word.format(plan=stage.plan) for word in command), target, "--store", stage.store,
            *(("--plugin", stage.plugin) if command[0] == "run" else ())]


def test_no_command_writes_over_a_file_of_another_kind(stage: Stage) -> None:
    """The store itself and the plan."""
    for command, target in itertools.product(WRITING, (stage.store, stage.plan)):
        before = target.read_bytes()
        result = call(*arguments(stage, command, target))
        assert result.exit_code == 2, result.output
        assert str(target.name) in result.output
        assert target.read_bytes() == before


def test_an_older_output_and_an_empty_file_are_replaced(stage: Stage, tmp_path: Path) -> None:
    for number, command in enumerate(WRITING[:-1]):
        target = tmp_path / f"output{number}"
        target.touch()
        good(call(*arguments(stage, command, target)))
        first = target.read_bytes()
        good(call(*arguments(stage, command, target)))
        assert first
        assert target.read_bytes() == first * (2 if "--summary" in command else 1), command


def test_figures_replace_figures_only(stage: Stage, tmp_path: Path) -> None:
    target = tmp_path / "figures"
    good(call("export", "figures", target, "--store", stage.store))
    good(call("export", "figures", target, "--store", stage.store))
    figure = min(target.iterdir())
    figure.write_text("mine")
    assert call("export", "figures", target, "--store", stage.store).exit_code == 2
    assert figure.read_text() == "mine"


def test_a_site_leaves_another_index(stage: Stage, tmp_path: Path) -> None:
    for name, text in (("index.html", "<!DOCTYPE html><title>my home page</title>"), ("site.json", '{"title": "my home page"}')):
        (file := tmp_path / name).write_text(text)
        assert call("report", "--site", tmp_path, "--store", stage.store).exit_code == 2
        assert file.read_text() == text
        file.unlink()


def test_a_pipe_is_no_target(stage: Stage, tmp_path: Path) -> None:
    """Opening it would wait for a reader."""
    os.mkfifo(tmp_path / "pipe")
    assert call("report", tmp_path / "pipe", "--store", stage.store).exit_code == 2
    assert call("export", "csv", tmp_path / "pipe", "--store", stage.store).exit_code == 2


def test_a_link_is_followed(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    good(call("report", tmp_path / "link", "--store", stage.store))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


# -- ``cachemark generate``: the grid it writes, the costs it prints, and what it refuses --
PROMPT = "two red stars above blue stripes"
