"""Import path of the scripts of ci/, which have a package of their own."""

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
import json, os
from importlib.machinery import PathFinder

names, found = frozenset(json.loads(os.environ["CACHEMARK_ABSENT"])), PathFinder.find_spec
present, installed = frozenset(json.loads(os.environ["CACHEMARK_PRESENT"])), PathFinder.find_distributions


def find_spec(cls, name, path=None, target=None):
    # Nothing is found, as where it is not installed: who only asks is told None, who imports gets ModuleNotFoundError.
    return None if name.partition(".")[0] in names else found(name, path, target)


def find_distributions(cls, *context, **more):
    # Nor are its entry points: pytest loads the plug-ins of what is installed.
    return (one for one in installed(*context, **more) if one.name.lower().replace("_", "-") in present)


PathFinder.find_spec, PathFinder.find_distributions = classmethod(find_spec), classmethod(find_distributions)
"""


def requirements() -> tuple[set[str], set[str]]:
    """Names of the packages to install, and of those that come with PyTorch."""
    there, carried = set(), set()
    for line in (ROOT / "ci" / "gpu_requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# there:"):
            there |= set(line.removeprefix("# there:").split())
        elif line and not line.startswith("#"):
            carried.add(line.partition("==")[0])
    return carried, there


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """The environment of a process that can import only these packages."""

    def made() -> dict[str, str]:
        allowed = {name.lower().replace("_", "-") for names in requirements() for name in names} | {"cachemark"}
        absent = [module for module, dists in packages_distributions().items()
                  if not {dist.lower().replace("_", "-") for dist in dists} & allowed and not module.startswith(("_", "cachemark"))]
        (tmp_path / "sitecustomize.py").write_text(BLOCKER)
        path = os.pathsep.join([str(tmp_path), str(ROOT / "suite"), str(ROOT / "ci"), str(ROOT / "tests")])
        return {**os.environ, "PYTHONPATH": path, "CACHEMARK_ABSENT": json.dumps(absent), "CACHEMARK_PRESENT": json.dumps(sorted(allowed))}

    return made
