"""A check of this machine: devices, rates, load, missing packages, and advice."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..cache.kernels import check, fused, fused_products
from ..cache.kernels.record import Query
from ..cache.kernels.table import TABLE
from ..core.errors import Infrastructure
from ..core.threads import default_threads
from ..core.units import METRICS
from ..machine import gpu as driver, rates
from ..machine.environment import environment
from ..machine.monitor import unseen
from ..models.catalogue import next_token
from ..models.weights import packaged

OPTIONAL = {
    "torch-fidelity": ("distributional quality metrics", "'cachemark[quality]'"),
    "torchvision": ("distributional quality metrics", "'cachemark[quality]'"),
    "transformers": ("the CLIP score, GenEval and DPG-Bench", "'cachemark[clip]'"),
    **{package: (metric.title, package) for metric in METRICS.values() for package in metric.packages},
    "flashinfer-python": ("the attention kernel flashinfer, on a GPU", "'cachemark[flashinfer]'"),
    "psycopg": ("a store on a PostgreSQL server", "'cachemark[postgres]'"),
}
NOT_USED = "not used"
BUSY, HOT = 0.3, 80  # processors busy with other work, °C: a measurement above these limits is in doubt


def doctor(*, quick: bool = False) -> dict[str, Any]:
    """Return facts about this machine by topic, ``advice`` last.

    Topics: each device, ``gpus``, ``rates`` (not if ``quick``: they take seconds), ``kernels`` (if ``quick``, only what earlier checks
    found), ``load``, ``weights`` and ``missing`` packages.
    """
    threads, load = default_threads(), _load()  # the load before our own work adds to it
    gpus, problems = _gpus()
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() and gpus else [])]
    found: dict[str, Any] = {device: environment(device, threads).to_json() for device in devices}
    found["gpus"] = gpus
    if not quick:
        found["rates"] = {device: _rates(device) for device in devices}
    found["kernels"] = _kernels(devices[-1], quick)
    found["load"] = load
    found["weights"] = {name: packaged(name).is_file() for name in (next_token.TINY_WEIGHTS, next_token.TINY_DECODER)}
    found["missing"] = {name: f"{use}: pip install {what}" for name, (use, what) in OPTIONAL.items() if not _installed(name)}
    found["advice"] = [*problems, *_advice(found, torch.version.cuda)]
    return found


def _gpus() -> tuple[list[dict[str, Any]], list[str]]:
    """Return facts about each GPU, with the newest CUDA of its driver, and advice on those that cannot be used.

    Nothing without a driver.
    """
    facts, problems = [], []
    if shadow := driver.shadowing_package():
        problems.append(f"The package pynvml ({shadow}) hides nvidia-ml-py, so some facts about GPUs may be missing. "
                        "Run: pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py")
    try:
        gpus = driver.gpus()
    except Infrastructure as error:
        return [], problems if getattr(error.__cause__, "value", None) == driver.LIBRARY_NOT_FOUND else [*problems, str(error)]
    for gpu in gpus:
        try:
            reading = gpu.reading()
            facts.append({"uuid": gpu.uuid, "name": gpu.name, "driver": gpu.driver, "cuda up to": gpu.cuda(), "memory": gpu.memory(),
                          **gpu.settings, **vars(reading), "processes": sorted(reading.processes or ()), "unseen": unseen([reading])})
        except driver.Lost as error:
            problems.append(f"{gpu.name} is lost: {error}.")
    return facts, [*problems, *getattr(gpus, "left_out", ())]


def _kernels(device: str, quick: bool) -> dict[str, str]:
    """Return whether each attention kernel, and the fused passes, can be used on a device: "usable", or the reason.

    A kernel is checked for LlamaGen's calls in bfloat16; a reason that a case has found for other calls counts too.
    """
    query = Query(device, torch.float32 if device == "cpu" else torch.bfloat16, 2, 2, 64, 1)
    reasons = dict[str, str]()
    for kernel in TABLE:
        refused = {call: kernel.refuses(call) for call in (query, query._replace(mass=True))}
        accepted = [call for call, reason in refused.items() if not reason]
        reasons[kernel.name] = "" if accepted else min(refused.values(), key=lambda reason: "mass" in reason)
        if accepted and kernel.ours and not quick:
            check.fault(kernel, accepted[0])
    if device == "cuda" and not quick:
        for group in fused.CHECKS:
            fused.faults(torch.device(device), query.dtype, group)
        fused_products.faults(torch.device(device), query.dtype)
    for call, reason in check.results(device).items():
        if reason:
            reasons[call.partition(":")[0]] = f"{NOT_USED} for {call.partition(': ')[2]}: {reason}"
    return {name: reason or "usable" for name, reason in reasons.items()}


def _rates(name: str) -> dict[str, str]:
    """Return the measured rates as text, or nothing if the measurement fails."""
    rates_by_dtype = rates.rates(name, default_threads(), ["float32" if name == "cpu" else "bfloat16"]).values()
    return next(({"bandwidth": f"{r.bandwidth / 1e9:.4g} GB/s", "peak_flops": f"{r.peak_flops / 1e12:.4g} TFLOP/s"}
                 for r in rates_by_dtype), {})


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _load() -> dict[str, Any]:
    """The load of the machine, and the governor of its clock."""
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    clocks = governor.read_text().strip() if governor.exists() else "not readable"
    return {"average of a minute": average, "cpus": os.cpu_count(), "governor": clocks}


def _advice(found: dict[str, Any], torch_cuda: str | None) -> Iterator[str]:
    """Advice on everything that would disturb a measurement now."""
    average, cpus = found["load"]["average of a minute"], found["load"]["cpus"]
    if average is not None and average > BUSY:
        yield (f"Other work keeps {average:.1f} of {cpus} processors busy; times measured now are unreliable. Wait, or "
               "measure with fewer --threads.")
    if found["load"]["governor"] not in ("performance", "not readable"):
        yield f"The CPU's governor is {found['load']['governor']!r}: its clock follows the load. Set it to 'performance'."
    for kernel, reason in found["kernels"].items():
        if reason.startswith(NOT_USED):
            yield f"{kernel} is {reason}. Other kernels compute these calls, slower; update torch and Triton, or report it."
    for gpu in found["gpus"]:
        name = f"{gpu['name']} ({gpu['uuid'][:12]})"
        if gpu["processes"]:
            processes = ", ".join(map(str, gpu["processes"]))
            yield f"{name}: process {processes} computes on it, and cases there would end as 'contended'. End it, or name another --gpu."
        if gpu["unseen"]:
            yield f"{name}: its driver does not show {' or '.join(gpu['unseen'])}. Cases that these disturb pass as undisturbed; update it."
        if (gpu["celsius"] or 0) >= HOT:
            yield f"{name}: {gpu['celsius']} °C. It will slow itself down; look at its cooling, or measure later."
    if found["gpus"] and torch_cuda is None:
        newest = found["gpus"][0]["cuda up to"]
        fitting = f"CUDA {newest} or older" if newest else "your driver's CUDA"
        yield f"torch is built for the CPU, but there is a GPU. Install a torch built for {fitting}."
    elif "cuda" not in found:
        yield "torch sees no CUDA device; measurements run on the CPU, under a machine class of their own."
