"""The scripts of ci/ import their own package, and run where little else can be imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "ci"))


BLOCKER = """
import json, os, sys

class Absent:
    names = frozenset(json.loads(os.environ["CACHEMARK_ABSENT"]))

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is not on the machine with the GPU")

sys.meta_path.insert(0, Absent())
"""


def requirements() -> tuple[set[str], set[str]]:
    """Names of what travels, and of what a machine with PyTorch has already."""
    there, carried = set(), set()
    for line in (ROOT / "ci" / "gpu_requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# there:"):
            there |= set(line.removeprefix("# there:").split())
        elif line and not line.startswith("#"):
            carried.add(line.partition("==")[0])
    return carried, there


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """The environment of a process in which only what travels, or is there already, can be imported."""

    def made() -> dict[str, str]:
        known = {name.lower().replace("_", "-") for names in requirements() for name in names} | {"cachemark"}
        absent = [module for module, dists in packages_distributions().items()
                  if not {dist.lower().replace("_", "-") for dist in dists} & known and not module.startswith(("_", "cachemark"))]
        (tmp_path / "sitecustomize.py").write_text(BLOCKER)
        path = os.pathsep.join([str(tmp_path), str(ROOT / "suite"), str(ROOT / "ci"), str(ROOT / "tests")])
        return {**os.environ, "PYTHONPATH": path, "CACHEMARK_ABSENT": json.dumps(absent)}

    return made
