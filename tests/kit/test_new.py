"""A new package passes the kit as written, is found once it is installed, and is typed with what it imports."""

import errno
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

import cachemark
from cachemark.core.errors import BadPlugin, Infrastructure
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


def test_a_new_package_offers_what_it_holds_nothing_is_overwritten_and_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How an offer of an installed package is found is in tests/plans."""
    write = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.name == "__init__.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(Infrastructure, match="No space left"):
            start("method", "calm", tmp_path)
    assert list(tmp_path.iterdir()) == []
    project = tomllib.loads(start("method", "my_own", tmp_path)[0].read_text())
    assert project["project"]["entry-points"] == {installed.GROUPS["methods"]: {"my_own": "cachemark_my_own.method"}}
    assert project["tool"]["setuptools"]["packages"] == ["cachemark_my_own"]
    with pytest.raises(BadPlugin, match="exists already"):
        start("model", "my_own", tmp_path)


@pytest.mark.parametrize(("thing", "name", "folder", "words"), [
    *(("method", name, ".", "") for name in ("linear", "Mine", "../mine", "a-b", "", "1st", "x" * 41, 'x"')),
    *(("metric", name, ".", "cachemark itself has a metric") for name in ("psnr", "color_consistency", "fid", "fid_mine")),
    ("method", "mine", "none", r"'[^']*/none' does not exist. Create it: mkdir -p"),
])  # fmt: skip
def test_invalid_and_taken_names_and_missing_folders_are_refused(thing: Thing, name: str, folder: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match=words or None) as refused:
        start(thing, name, tmp_path / folder)
    assert "nothing is overwritten" not in str(refused.value) or folder == "."
    assert list(tmp_path.iterdir()) == []


# -- types ------------------------------------------------------------------------------------------------------------
PACKAGE = Path(cachemark.__file__).parent
METHOD = '''
from typing import assert_type

from torch import Tensor

import cachemark as cm
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.decoders.registry import DECODERS
from cachemark.methods.base.evicting import Evicting, SlotBank as Again  # attr-defined
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS


@cm.method("watching")
class Watching(Evicting):
    def evict(self, step: Step, slots: SlotBank) -> None:
        assert_type(slots.keys(), Tensor)
        assert_type(slots.live_visual, int)

    def count(self, slots: SlotBank) -> str:
        return slots.live_visual  # return-value


@cm.method("wrong")
class Wrong(Evicting):
    def evict(self, step: int, slots: SlotBank) -> None:  # override
        return None


assert_type(Wrong, type[Wrong])


def filed(entry: ModelEntry, request: Request) -> Loaded:
    assert_type(MODELS.add("filed")(entry), ModelEntry)
    return request  # return-value


def read(name: str) -> Method:
    assert_type(DECODERS.get(name), type[Decoder])
    print(METHODS.get(name).evict_before)  # attr-defined
    return METHODS.get(name).evicts  # return-value
'''


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy here; the extra `dev` has it")
def test_mypy_strict_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    """As an author runs it: cachemark is installed, its own files are not checked, and ``py.typed`` declares its types."""
    assert (PACKAGE / "py.typed").is_file()
    for thing in get_args(Thing):
        start(thing, f"my_{thing}", tmp_path)
    (tmp_path / "written.py").write_text(METHOD, encoding="utf-8")
    begun = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("cachemark-*/**/*.py"))
    assert len(begun) == 9
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--config-file", os.devnull, "written.py", *begun]
    checked = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True, check=False)
    errors = set(re.findall(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, flags=re.MULTILINE))
    marked = {("written.py", str(number), line.rpartition("# ")[2])
              for number, line in enumerate(METHOD.splitlines(), 1) if re.search(r"  # [a-z-]+$", line)}
    assert len(marked) == 6
    assert errors == marked, checked.stdout + checked.stderr
