"""The shipped plans by the device that they are meant for, and the command that runs a plan."""

from __future__ import annotations

import shlex
from functools import cache

from .files import PACKAGE

PLANS = PACKAGE / "data" / "plans"  # a folder per group
ON_CPU = "tiny"  # the only group whose plans a CPU runs in minutes


def for_gpu(plan: str) -> bool:
    """Return whether a plan is shipped and meant for a GPU."""
    return plan in _of_gpus()


def run_command(plan: str, device: str = "") -> str:
    """Return the command that runs a plan on a device (empty: the one that it is meant for)."""
    on_gpu = device == "cuda" if device else for_gpu(plan)
    return f"cachemark run {shlex.quote(plan)}{' --device cuda' if on_gpu else ''}"


@cache
def _of_gpus() -> frozenset[str]:
    return frozenset(path.stem for path in PLANS.glob("*/*.toml") if path.parent.name != ON_CPU)
