"""``cachemark doctor``: what this machine can do."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import click

from .options import echo_json, json_option

OPTIONAL = {"torch-fidelity": "distributional quality metrics", "torchvision": "distributional quality metrics"}
REMEDY = "pip install 'cachemark[quality]'"


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is here: device, driver, torch, thread counts, what is missing and how to get it."""
    import torch

    from ..measure.environment import environment
    from ..models import catalogue

    threads = os.cpu_count() or 1
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    facts: dict[str, Any] = {device: environment(device, threads).to_json() for device in devices}
    facts["load"] = _load()
    facts["weights"] = {name: catalogue.packaged(name).is_file() for name in (catalogue.TINY_WEIGHTS, catalogue.TINY_DECODER)}
    facts["missing"] = {name: f"{use}: {REMEDY}" for name, use in OPTIONAL.items() if not _installed(name)}
    facts["advice"] = _advice(facts)
    if as_json:
        echo_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name}:")
        for key, item in (value.items() if isinstance(value, dict) else enumerate(value, 1)):
            click.echo(f"  {key}: {item}")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _load() -> dict[str, Any]:
    """How busy the machine is without us."""
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    clocks = governor.read_text().strip() if governor.exists() else "not readable"
    return {"average of a minute": average, "cpus": os.cpu_count(), "governor": clocks}


def _advice(facts: dict[str, Any]) -> list[str]:
    advice = []
    average, cpus = facts["load"]["average of a minute"], facts["load"]["cpus"]
    if average is not None and average > 0.3:
        advice.append(f"Other work keeps {average:.1f} of {cpus} processors busy; times measured now are not worth keeping.")
    if "cuda" not in facts:
        advice.append("torch sees no CUDA device; measuring on the CPU works and is told apart by its machine class.")
    return advice
