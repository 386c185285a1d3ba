"""The facts of a machine as names and values, and where two machines differ. All of it is text."""

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
    """(name, value) of each fact of a machine and of the code that measured."""
    facts = {**_facts(environment), **dict(flat(code, "code"))}
    return tuple((title(name), _fact(name, value)) for name, value in facts.items())


def _facts(environment: Environment) -> dict[str, Any]:
    first = {"device": environment.device, "machine class": environment.machine_class, "fingerprint": environment.fingerprint}
    return {**first, **dict(flat(environment.facts)), **first}


def differences(then: Environment, now: Environment) -> tuple[tuple[str, str, str], ...]:
    """(name, then, now) of facts in which two environments differ, in the order of ``now``.

    Rates are measured anew in every run, so near ones are equal.
    """
    old, new = _facts(then), _facts(now)
    return tuple((title(name), _fact(name, old.get(name)), _fact(name, new.get(name)))
                 for name in dict.fromkeys((*new, *old)) if not _alike(name, old.get(name), new.get(name)))


def _alike(name: str, value: Any, other: Any) -> bool:
    if name.startswith("rates ") and isinstance(value, float) and isinstance(other, float) and other:
        return abs(value / other - 1) < NEAR
    return as_text(value) == as_text(other)


def title(name: str) -> str:
    """A fact's name as a heading: what is an abbreviation stays one."""
    first, _, remainder = name.partition(" ")
    return " ".join(filter(None, (ABBREVIATIONS.get(first, first[:1].upper() + first[1:]), remainder)))


def _fact(name: str, value: Any) -> str:
    for ending, scale, unit in RATES:
        if name.startswith("rates ") and name.endswith(ending) and isinstance(value, (int, float)):
            return f"{value / scale:.3g} {unit}"
    return as_text(value)


def as_text(value: Any) -> str:
    """A setting or fact as the page prints it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return fmt.DASH
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)
