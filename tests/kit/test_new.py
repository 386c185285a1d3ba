"""A new package passes the kit as written, and is found once it is installed."""

import errno
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.plans.expand import expand
from cachemark.plans.schema import prepare
from cachemark.plugins import installed
from cachemark.workflows.decidable import too_few_seeds
from cachemark.workflows.new import Thing, start
from support.stages import forgetting


@pytest.mark.parametrize("thing", [pytest.param("method", marks=pytest.mark.slow), "model", "metric"])
def test_a_new_package_passes_its_own_test(thing: Thing, tmp_path: Path) -> None:
    """Run the written test as it is. The kit takes long for a method, so by night."""
    files = start(thing, "my_own", tmp_path)
    own = ["plan.toml"] if thing == "method" else []
    assert [file.name for file in files] == ["pyproject.toml", "__init__.py", f"{thing}.py", "test_my_own.py", *own]
    for plan in files[4:]:  # it is complete, and has enough seeds for a rank
        assert not too_few_seeds(expand(prepare(str(plan), [])[0]))
    with forgetting():
        runpy.run_path(str(files[3]))[f"test_the_{thing}_passes_the_kit"]()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.name == "__init__.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadPlugin, match="No space left"):
        start("method", "calm", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_is_found_once_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install it by hand from its pyproject."""
    root = start("method", "my_own", tmp_path)[0].parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    about = root / "cachemark_my_own-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 0.1.0\n")
    groups = project["project"]["entry-points"]
    (about / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups.items()))
    monkeypatch.syspath_prepend(str(root))
    offer = installed.offer("methods", "my_own")
    assert offer is not None
    assert (offer.source, offer.file) == ("cachemark-my-own 0.1.0", root / "cachemark_my_own" / "method.py")
    assert project["tool"]["setuptools"]["packages"] == ["cachemark_my_own"]
    assert not [name for name in sys.modules if name.startswith("cachemark_my_own")]


@pytest.mark.parametrize("name", ["linear", "Mine", "../mine", "a-b", "", "1st", "x" * 41, 'x"'])
def test_invalid_and_taken_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadPlugin):
        start("method", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["psnr", "color_consistency", "fid", "fid_mine"])
def test_a_metric_does_not_take_a_built_in_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match="cachemark itself has a metric"):
        start("metric", name, tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match=r"'[^']*/none' does not exist. Create it: mkdir -p") as refused:
        start("method", "mine", tmp_path / "none")
    assert "nothing is overwritten" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    start("method", "mine", tmp_path)
    with pytest.raises(BadPlugin, match="cannot be written: File exists"):
        start("model", "mine", tmp_path)
