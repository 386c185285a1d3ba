"""Facts of machines and settings as names and values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..core import formatting as fmt
from ..core.facts import Facts
from ..core.result import Environment
from ..core.spec import Case
from ..store.differences import flat

NEAR = 0.1  # two measured rates of one machine count as equal up to this relative difference
RATES = ("bandwidth", 1e9, "GB/s"), ("peak_flops", 1e12, "TFLOP/s")
RATE_TITLES = {"bandwidth": "Measured bandwidth", "peak_flops": "Measured FLOP/s"}
NEUTRAL = {  # settings that change nothing at this value
    "cfg_schedule": "constant", "cfg_interval": -1, "top_k": 0, "top_p": 1.0, "steps": 0, "diffusion_steps": 0,
}
ABBREVIATIONS = {
    "cpu": "CPU", "cpus": "Processors", "cuda": "CUDA", "os": "OS", "tf32": "TF32 matmuls", "gpu": "GPU", "onednn": "oneDNN",
    "cudnn": "cuDNN", "cpu_capability": "CPU instructions", "compute_capability": "Compute capability", "torch": "PyTorch",
    "fingerprint": "Numerics fingerprint",
}
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{12,}\b")


def environment_facts(environment: Environment, code: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each fact of a machine and of the code that measured."""
    facts = {**_facts(environment), **dict(flat(code, "code"))}
    return tuple((title(name), _fact(name, value)) for name, value in facts.items() if value is not None and value != "")


def differences(then: Environment, now: Environment) -> tuple[tuple[str, str, str], ...]:
    """Return (name, then, now) of facts that differ; measured rates within 10 % count as equal."""
    old, new = _facts(then), _facts(now)
    return tuple((title(name), _fact(name, old.get(name)), _fact(name, new.get(name)))
                 for name in dict.fromkeys((*new, *old)) if not _alike(name, old.get(name), new.get(name)))


def conditions(case: Case) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the settings that the cases of a group share, but for those of sampling that change nothing."""
    settings = {
        "Weights": case.weights, "Grid": f"{case.grid[0]} × {case.grid[1]} tokens", "Conditions": case.conditions,
        "Seeds": f"{case.seeds} ({case.samples})", "Batch": case.batch, "Compute dtype": case.dtype, "Engine": case.engine,
        "Device class": case.device_class, "Warm-up, repeats": f"{case.warmup}, {case.repeats}",
    }
    sampling = {name.replace("cfg", "CFG").replace("_", " "): value for name, value in asdict(case.sampling).items()
                if name not in NEUTRAL or NEUTRAL[name] != value}
    evaluation = dict(flat(case.evaluation, "evaluation"))
    return tuple((title(name), short_hashes(as_text(value))) for name, value in {**settings, **sampling, **evaluation}.items())


def weights_sources(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the weights of a case that come from Hugging Face."""
    return tuple((f"Source of {key.replace('_', ' ')}", f"hf:{of.repository}@{of.revision}:{of.file}, SHA-256 {of.sha256}")
                 for key, of in (facts.weights_sources or {}).items())


def _facts(environment: Environment) -> dict[str, Any]:
    first = {"device": environment.device, "machine class": environment.machine_class, "fingerprint": environment.fingerprint}
    return {**first, **dict(flat(environment.facts)), **first}


def _alike(name: str, value: Any, other: Any) -> bool:
    if name.startswith("rates ") and isinstance(value, float) and isinstance(other, float) and other:
        return abs(value / other - 1) < NEAR
    return as_text(value) == as_text(other)


def title(name: str) -> str:
    """Return a fact's name as a heading."""
    first, _, remainder = name.partition(" ")
    dtype, _, rate = remainder.partition(" ")
    if first == "rates" and rate in RATE_TITLES:
        return f"{RATE_TITLES[rate]}, {dtype}"
    return " ".join(filter(None, (ABBREVIATIONS.get(first, first[:1].upper() + first[1:]), remainder))).replace("_", " ")


def _fact(name: str, value: Any) -> str:
    for ending, scale, unit in RATES:
        if name.startswith("rates ") and name.endswith(ending) and isinstance(value, (int, float)):
            return f"{value / scale:.3g} {unit}"
    return short_hashes(as_text(value))


def short_hashes(text: str) -> str:
    """Return a text with hashes of 24 or more digits cut to 12."""
    return _HASH.sub(r"\1…", text)


def as_text(value: Any) -> str:
    """Return a setting or fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return fmt.DASH
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)
