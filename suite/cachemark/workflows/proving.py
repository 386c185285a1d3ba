"""Self-test of the gate: it is shown a slow-down, equal arms and an empty plan on the device where it judges, and must tell them apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import BadStore, Infrastructure, NothingMeasured
from ..core.verdicts import REGRESSED
from ..gate.comparison import OTHER_METHODS, Tally, measure_until_decided, verdicts
from ..methods.registry import METHODS
from ..plans import schema as plans
from ..plans.expand import Planned
from ..plugins import loading as plugins
from ..stats.paired_test import Rule
from ..store.rows import Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .arms import cells_of
from .machines import Machine
from .pairs import Arm, Pair, PairRunner, measure
from .stores import reading

OnStep = Callable[[str], None]
DELTA, SLOWER = 0.20, 0.60  # minimum effect, and how much longer the slowed arm takes
EQUAL, SLOWED = "equal arms", "slowed arm"
PLAN = """name = "self-test"
[timing]
warmup = 1
repeats = 3
[fidelity]
samples = 1
[[cells]]
model = "tiny-var"
methods = ["delayed"]
batch = 1
"""
METHOD = '''"""A window that waits before it begins, busily, for as long as its knob says: on a GPU the device waits and not the host."""
import functools
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
import cachemark as cm
from cachemark.methods.window import Window


@functools.cache
def cycles(device):
    """Cycles that the device spins in a second."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)
    begun.record()
    torch.cuda._sleep(10**8)
    ended.record()
    ended.synchronize()
    return 1e11 / begun.elapsed_time(ended)


def wait(seconds, device):
    """Keep the device busy."""
    if seconds and device.type == "cuda":
        torch.cuda._sleep(int(seconds * cycles(device)))
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@cm.method("delayed")
@dataclass
class Delayed(Window):
    """A window that waits before it begins."""

    wait: float = 0.0
    name: ClassVar[str] = "delayed"
    source: ClassVar[str] = "the gate's self-test"

    def begin(self, layout, sites, memory):
        wait(self.wait, memory.device)
        super().begin(layout, sites, memory)
'''


@dataclass(frozen=True)
class Proof:
    """One duty of the gate, and whether it was done."""

    name: str
    passed: bool
    said: str


def newest_device(store: str | Path) -> str:
    """The device class of the newest run of a store; without one, that of this machine."""
    import torch

    try:
        with reading(store) as source:
            return "cuda" if source.run().environment.facts.get("cuda") else "cpu"
    except (BadStore, NothingMeasured):
        return "cuda" if torch.cuda.is_available() else "cpu"


def self_test(machine: Machine | str = "cpu", on_step: OnStep = lambda said: None) -> tuple[Proof, ...]:
    """Show the gate equal arms, a slowed arm and a comparison of nothing, timed by the clock of the machine's device. ``on_step`` is called
    with a line before it measures and after each pair. Raises Infrastructure where the device is not to be had, or the model does not run
    on it."""
    machine = Machine.of(machine)
    machine.require()
    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder, machine.places() as places:
        plugin, plan = Path(folder, "delayed.py"), Path(folder, "self-test.toml")
        plugin.write_text(METHOD, encoding="utf-8")
        plan.write_text(PLAN, encoding="utf-8")
        if "delayed" not in METHODS:
            plugins.load(plugin)
        loaded = plans.load(str(plan))
        request = TrialRequest(loaded.timeout, machine.threads, (str(plugin),), Task.TIMES, memory_cap=machine.memory_cap)
        (planned,) = cells_of(loaded, machine.device, ["delayed 1/2"], images=3).values()
        return (*_pairs(planned, request, places, on_step), _empty())


def _pairs(planned: Planned, request: TrialRequest, executor: Executor, on_step: OnStep) -> list[Proof]:
    """Equal arms and a slowed arm, measured in the same processes and judged by the same rule."""
    before = {EQUAL: _delayed(planned, 0.0, 3), SLOWED: _delayed(planned, 0.0, 4)}
    on_step("How long does a generation take?")
    wait = SLOWER * _latency(before, request, executor)
    after = {EQUAL: before[EQUAL], SLOWED: _delayed(planned, wait, 4)}
    rule = Rule(DELTA, 2)
    most = max(rule.looks[-1], rule.looks[0] + rule.fresh)

    def tell(pair: Pair) -> None:
        on_step(f"{pair.cell}: pair {pair.number} of {rule.looks[0]} to {most}")

    runner = PairRunner(Arm("before", before, request), Arm("after", after, request), executor, on_pair=tell)
    rows = verdicts(measure_until_decided(before, runner.round, rule, alike=OTHER_METHODS), rule, OTHER_METHODS)
    timed = {row.label: row for row in rows if row.metric in ("latency", "status")}
    return [_proof(timed[EQUAL], REGRESSED, False), _proof(timed[SLOWED], REGRESSED, True)]


def _delayed(planned: Planned, wait: float, images: int) -> Planned:
    """The case with that wait; cells of one process differ in how often they generate."""
    case = replace(planned.case, knobs={**planned.case.knobs, "wait": wait}, repeats=images)
    return replace(planned, case=case)


def _latency(cells: Mapping[str, Planned], request: TrialRequest, executor: Executor) -> float:
    """Seconds of a generation as it is, from a process of its own."""
    outcome = measure([Arm("before", cells, request)], [EQUAL], executor)[0][EQUAL]
    found = outcome.median("latency")
    if found is None:
        last = (outcome.log.strip().splitlines() or [str(outcome.status)])[-1]
        raise Infrastructure(f"The self-test's model does not run here: {last}", remedy="See: cachemark doctor")
    return found


def _proof(row: Verdict, verdict: str, wanted: bool) -> Proof:
    passed = (row.verdict == verdict) is wanted and row.metric == "latency"
    name = f"{row.label}, {100 * SLOWER:.0f} % longer," if wanted else row.label
    return Proof(f"{name} must {'' if wanted else 'not '}be {verdict}", passed, f"{row.verdict}, {row.reason}")


def _empty() -> Proof:
    """A comparison of no cells must not pass."""
    code = Tally((), 0).exit_code
    return Proof("an empty plan must not pass", code == 4, f"exit code {code}")
