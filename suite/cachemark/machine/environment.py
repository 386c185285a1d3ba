"""What the figures depend on besides the case: the machine, its software, and the code that measured."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core import registry
from ..core.result import Environment
from ..core.spec import Case, digest
from ..core.units import FAMILIES, METRICS
from .gpu import Gpu, gpus

PACKAGE = Path(__file__).resolve().parent.parent
MEASURING = ("cache", "contract", "core", "methods", "metrics", "models", "roofline", "trial")


def environment(device: str, threads: int, gpu: Gpu | None = None) -> Environment:
    """The environment of a trial on ``device`` (``cpu`` or ``cuda``) with so many CPU threads; on ``gpu``, by default the first one.

    Its fingerprint says nothing of the kernels that our own code chooses, such as that of a packed linear layer (ADR 13): these are part of
    the code, which the skip key has beside it.
    """
    name, driver = _device(device, gpu)
    facts: dict[str, Any] = {
        "device": name, "cpu": _cpu(), "cpus": os.cpu_count(), "threads": threads, "os": platform.platform(terse=True),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda if device != "cpu" else None,
        "driver": driver, "cachemark": __version__, "tf32": torch.backends.cuda.matmul.allow_tf32 if device != "cpu" else None,
    }
    machine = f"{name}, {threads} threads" if device == "cpu" else name
    numerics = {k: facts[k] for k in ("device", "torch", "cuda", "driver", "threads", "tf32")}
    return Environment(name, slug(machine), digest(numerics), facts)


def slug(text: str) -> str:
    """Lower case, digits and single dashes: a name for a folder."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def skip_parts(case: Case, environment: Environment, device: str) -> dict[str, str]:
    """What must be unchanged for a stored outcome to stand. Edits of documents, reports or the CLI are not among it."""
    cls = registry.methods.get(case.method)
    return {
        "case": case.key,
        "method": _method_code(cls.__module__),
        "models": _code(("cache", "contract", "roofline", "models")),
        "measuring": _code(("core", "metrics", "trial")),
        "metrics": digest({name: metric.version for name, metric in (METRICS | FAMILIES).items()}),
        "numerics": environment.fingerprint,
    }


def skip_key(parts: dict[str, str]) -> str:
    """One key of the parts."""
    return digest(parts)


@cache
def code_identity() -> dict[str, Any]:
    """Commit, whether the tree differs from it, and a hash of the measuring code."""
    ours = _git("ls-files", "--", str(PACKAGE / "__init__.py"))  # an installed copy may lie in the checkout of something else
    commit = _git("rev-parse", "HEAD") if ours else ""
    dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE))) if commit else None
    return {"commit": commit, "dirty": dirty, "hash": _code(MEASURING), "version": __version__}


def _git(*arguments: str) -> str:
    """Output of a git command in the checkout around the package, empty where there is none."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def _method_code(module: str) -> str:
    """Hash of the method's whole package; of a plug-in's file too, which may build on a method of the package."""
    built_in = _code(("methods",))
    if module.startswith("cachemark.methods"):
        return built_in
    return digest([built_in, _hashed([Path(str(sys.modules[module].__file__))])])


@cache
def _code(folders: tuple[str, ...]) -> str:
    return _hashed(path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py")))


def _hashed(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def _device(device: str, gpu: Gpu | None) -> tuple[str, str | None]:
    """Name and driver. A GPU is asked through its driver: torch would take memory on it, and be a foreign process there."""
    if device == "cpu":
        return _cpu(), None
    gpu = gpu or gpus()[0]
    return gpu.name, gpu.driver


@cache
def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
