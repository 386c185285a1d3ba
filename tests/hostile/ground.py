"""The ground of an attack: the folder of an ordinary user, and things next to it that must not change."""

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from cachemark.gate import baselines, incidents
from cachemark.gate.incidents import Incident
from cachemark.store.db import Store
from support.stages import Stage

PLAN, STORE = "dots.toml", "dots.sqlite"
BASELINE, REGISTER, BENCHMARKS = "base.json", "incidents.json", "bench.json"
Preparation = Callable[[Path], object]
KEY = "3f2a91c07e"  # of the only incident in the register


def furnish(measured: Stage, folder: Path) -> Path:
    """Furnish a folder: a measured plan with its plug-in, weights, store and baseline, an incident, an anchor, a pytest-benchmark file."""
    here = measured.copy(folder).folder
    (here / PLAN).write_text((here / PLAN).read_text().replace(f"{here}/", ""))
    with Store.open(here / STORE) as store:
        accepted = baselines.save(store, None, here / baselines.ROOT, reason="the first")
        machine = store.run().environment.machine_class
    shutil.copy(accepted, here / BASELINE)
    assert accepted.parent.name in machine.replace(" ", "-")
    incident = Incident(KEY, "latency", "method", "streaming", ("dot streaming 1/2, batch 2",), 1.2, date(2026, 1, 1), "slower", "1a2b3c")
    incidents.save(here / REGISTER, [incident])
    (here / BENCHMARKS).write_text(json.dumps({
        "machine_info": {"node": "here", "cpu": {"brand_raw": "a CPU", "count": 2}}, "datetime": "2026-01-01T00:00:00", "version": "5.0",
        "benchmarks": [{"fullname": "test_a", "group": None, "params": {}, "stats": {"data": [0.1, 0.2], "rounds": 2, "iterations": 1}}]}))
    return here


def lay_out(furnished: Path, ground: Path) -> Path:
    """Copy the furnished folder to ``here``, next to a home, a folder for temporary files and others' files; return ``here``."""
    shutil.copytree(furnished, ground / "here", symlinks=True)
    for name in ("home", "tmp", "leases", "others"):
        (ground / name).mkdir()
    (ground / "others" / "thesis.txt").write_text("nobody has a copy of this")
    return ground / "here"


def both(*preparations: Preparation) -> Preparation:
    """Return a preparation: each of these in turn."""
    return lambda folder: [prepare(folder) for prepare in preparations]


def preparation(prepare: Callable[..., object]) -> Callable[..., Preparation]:
    """Return what makes a preparation of everything but the folder, the first argument."""
    return lambda *given: lambda folder: prepare(folder, *given)


@preparation
def replaced(folder: Path, name: str, old: str, new: str) -> None:
    """Replace a text in a file, in which it occurs."""
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text, (name, old)
    (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8", errors="surrogatepass")


@preparation
def written(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


@preparation
def edited(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Apply ``change`` to the data of a JSON file."""
    data = json.loads((folder / name).read_text(encoding="utf-8"))
    change(data)
    (folder / name).write_text(json.dumps(data), encoding="utf-8")
