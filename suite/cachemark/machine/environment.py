"""Machine and software of trials, and the fingerprint of their numerics."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..core.result import Environment
from ..core.spec import digest
from ..core.version import __version__
from .gpu import Gpu, gpus


def environment(device: str, threads: int, gpu: Gpu | None = None) -> Environment:
    """Return the environment of a trial on ``device`` (``cpu`` or ``cuda``) with ``threads`` CPU threads.

    ``gpu`` defaults to the first one. The fingerprint excludes kernels chosen by this package, such as packed linear layers (ADR 13): they
    belong to the code, which is also part of the result key."""
    if device != "cpu":  # a GPU is asked through its driver: torch would take memory on it, and be a foreign process there
        gpu = gpu or gpus()[0]
    name, driver = (gpu.name, gpu.driver) if gpu else (_cpu(), None)
    facts: dict[str, Any] = {
        "device": name, "cpu": _cpu(), "cpus": os.cpu_count(), "threads": threads, "os": platform.platform(terse=True),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda if device != "cpu" else None,
        "driver": driver, "cachemark": __version__, "tf32": torch.backends.cuda.matmul.allow_tf32 if device != "cpu" else None,
    }
    machine = f"{name}, {threads} threads" if device == "cpu" else name
    numerics = {k: facts[k] for k in ("device", "torch", "cuda", "driver", "threads", "tf32")}
    return Environment(name, slug(machine), digest(numerics), facts)


def slug(text: str) -> str:
    """Return text as lower case, digits and single dashes, for folder names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@cache
def _cpu() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()
