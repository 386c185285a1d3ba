"""Machine and software of trials, and the fingerprint of their numerics."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..core.errors import Infrastructure
from ..core.result import Environment
from ..core.spec import digest
from ..core.version import __version__
from .gpu import Gpu, first, gpus
from .monitor import unseen

INSTRUCTIONS = re.compile(r"(avx|amx|fma|sse4|asimd|sve)\w*")  # flags of a CPU that select the kernels of its libraries
KERNELS = (  # variables of the user that select them
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip

NUMERICS = ("torch", "threads", "tf32", "cuda", "cudnn", "compute_capability", "kernels")  # facts that the fingerprint covers
OF_CPU = ("cpu_capability", "onednn")  # and those that it covers on a CPU


def environment(device: str, threads: int, gpu: Gpu | None = None) -> Environment:
    """Return the environment of a trial on ``device`` (``cpu`` or ``cuda``) with ``threads`` CPU threads.

    ``gpu`` defaults to the first one. The fingerprint covers everything outside this package that selects kernels: the device with its
    instruction sets, libraries, threads, and the variables of :data:`KERNELS`. It excludes kernels chosen by this package, such as packed
    linear layers (ADR 13): they belong to the code, which is also part of the result key. The machine class of a GPU names its unusual
    settings."""
    if device != "cpu":  # query a GPU through its driver: torch would take memory on it, and count as a foreign process
        gpu = gpu or first(gpus())
    name, driver = (gpu.name, gpu.driver) if gpu else (_cpu("model name"), None)
    cuda = torch.version.cuda if device != "cpu" else None
    facts: dict[str, Any] = {
        "device": name, "cpu": _cpu("model name"), "cpus": os.cpu_count(), "threads": threads, "os": platform.platform(terse=True),
        "python": platform.python_version(), "torch": torch.__version__, "cuda": cuda,
        "driver": driver, "cachemark": __version__, "tf32": torch.backends.cuda.matmul.allow_tf32 if device != "cpu" else None,
        "compute_capability": gpu.compute_capability if gpu else None, "cudnn": torch.backends.cudnn.version() if cuda else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(), "onednn": torch.backends.mkldnn.is_available(),
        "kernels": {variable: os.environ[variable] for variable in KERNELS if variable in os.environ},
    }
    if gpu:
        facts |= gpu.settings | ({"unseen": blind} if (blind := unseen([gpu.reading()])) else {})
    machine = gpu.kind if gpu else f"{name}, {threads} threads"
    numerics = [name, driver, *(facts[k] for k in NUMERICS)]
    if device == "cpu":
        flags = sorted(flag for flag in _cpu("flags", "Features").split() if INSTRUCTIONS.fullmatch(flag))
        model = [_cpu(field) for field in ("cpu family", "model", "cache size")]  # libraries choose block sizes by these
        numerics += [*(facts[k] for k in OF_CPU), torch.backends.mkl.is_available(), flags, model]
    return Environment(name, slug(machine), digest(numerics), facts)


def no_cuda(remedy: str) -> Infrastructure:
    """Return the error for a GPU that torch does not see, with the build of torch."""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    return Infrastructure(f"--device cuda was given, but torch sees no CUDA device (torch {torch.__version__}, built for {build}).",
                          remedy=remedy)


def slug(text: str) -> str:
    """Return text as lower case, digits and single dashes, for folder names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@cache
def _cpu(*fields: str) -> str:
    """Return the first of these fields of /proc/cpuinfo, else the processor's name."""
    try:
        match = re.search(rf"^(?:{'|'.join(fields)})\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()
