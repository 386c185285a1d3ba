"""Facts of a machine as names and values, and differences between two machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.result import Environment
from ..store.differences import flat
from . import formatting as fmt

NEAR = 0.1  # share by which two measured rates of one machine may differ and still count as equal
RATES = ("bandwidth", 1e9, "GB/s"), ("peak_flops", 1e12, "TFLOP/s")
ABBREVIATIONS = {"cpu": "CPU", "cpus": "CPUs", "cuda": "CUDA", "os": "OS", "tf32": "TF32", "gpu": "GPU"}


def environment_facts(environment: Environment, code: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each fact of a machine and of the code that measured."""
    facts = {**_facts(environment), **dict(flat(code, "code"))}
    return tuple((title(name), _fact(name, value)) for name, value in facts.items())


def _facts(environment: Environment) -> dict[str, Any]:
    first = {"device": environment.device, "machine class": environment.machine_class, "fingerprint": environment.fingerprint}
    return {**first, **dict(flat(environment.facts)), **first}


def differences(then: Environment, now: Environment) -> tuple[tuple[str, str, str], ...]:
    """Return (name, then, now) of facts that differ; measured rates within 10 % count as equal."""
    old, new = _facts(then), _facts(now)
    return tuple((title(name), _fact(name, old.get(name)), _fact(name, new.get(name)))
                 for name in dict.fromkeys((*new, *old)) if not _alike(name, old.get(name), new.get(name)))


def _alike(name: str, value: Any, other: Any) -> bool:
    if name.startswith("rates ") and isinstance(value, float) and isinstance(other, float) and other:
        return abs(value / other - 1) < NEAR
    return as_text(value) == as_text(other)


def title(name: str) -> str:
    """Return a fact's name as a heading."""
    first, _, remainder = name.partition(" ")
    return " ".join(filter(None, (ABBREVIATIONS.get(first, first[:1].upper() + first[1:]), remainder)))


def _fact(name: str, value: Any) -> str:
    for ending, scale, unit in RATES:
        if name.startswith("rates ") and name.endswith(ending) and isinstance(value, (int, float)):
            return f"{value / scale:.3g} {unit}"
    return as_text(value)


def as_text(value: Any) -> str:
    """Return a setting or fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return fmt.DASH
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)
