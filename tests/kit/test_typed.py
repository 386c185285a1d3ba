"""Everything that authors of plug-ins import is typed: ``mypy --strict`` finds mistakes and nothing else."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import cachemark
from cachemark.workflows.new import Thing, start

PACKAGE = Path(cachemark.__file__).parent
METHOD = '''"""A method that looks at attention, and a model's entry."""

from dataclasses import dataclass
from typing import assert_type

from torch import Tensor

import cachemark as cm
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Site, Step
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting
from cachemark.metrics.base import MetricBase
from cachemark.models.protocol import Loaded, ModelEntry, Request


@cm.method("watching")
@dataclass
class Watching(Evicting):
    name = "watching"
    power: float = 1.0

    def evict(self, step: Step, slots: SlotBank) -> None:
        assert_type(slots.keys(), Tensor)
        assert_type(slots.live_visual, int)


class Plain(Method):
    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(site, step, q, k, v)


assert_type(cm.method("plain")(Plain), type[Plain])
assert_type(cm.method("plain")(Plain), type[Plain])


def filed(entry: ModelEntry, request: Request) -> Loaded:
    assert_type(MODELS.add("filed")(entry), ModelEntry)
    return MODELS.get("filed").load(request)


def read(name: str) -> Method:
    assert_type(MODELS.get(name), ModelEntry)
    assert_type(DECODERS.get(name), type[Decoder])
    assert_type(registry.metrics.get(name), type[MetricBase])
    assert_type(METHODS.entries(), dict[str, type[Method]])
    return METHODS.get(name).build({})
'''
WRONG = '''"""Six mistakes, each in a line that says so."""

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
import cachemark as cm
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting, SlotBank as Again  # attr-defined
from cachemark.models.protocol import Loaded, Request


@cm.method("wrong")
class Wrong(Evicting):
    def evict(self, step: int, slots: SlotBank) -> None:  # override
        return None

    def count(self, slots: SlotBank) -> str:
        return slots.live_visual  # return-value


def load(request: Request) -> Loaded:
    return request  # return-value


def evicts(name: str) -> str:
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
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    begun = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("cachemark-*/**/*.py"))
    assert len(begun) == 9
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--config-file", os.devnull, "written.py", "wrong.py", *begun]
    checked = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True, check=False)
    errors = set(re.findall(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, flags=re.MULTILINE))
    marked = {("wrong.py", str(number), line.rpartition("# ")[2])
              for number, line in enumerate(WRONG.splitlines(), 1) if re.search(r"  # [a-z-]+$", line)}
    assert len(marked) == 6
    assert errors == marked, checked.stdout + checked.stderr
