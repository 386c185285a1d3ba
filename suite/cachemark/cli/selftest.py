"""``cachemark check --self-test``: the gate is shown a slow-down, equal arms and an empty plan, and must tell them apart."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import echo_json

if TYPE_CHECKING:
    from ..plan.expand import Planned
    from ..store.rows import Verdict
    from ..trial.request import TrialRequest

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
METHOD = '''"""A window that waits before it begins, busily, for as long as its knob says."""
import time
from dataclasses import dataclass
from typing import ClassVar

from cachemark import registry
from cachemark.methods.window import Window


@registry.methods.add("delayed")
@dataclass
class Delayed(Window):
    """A window that waits before it begins."""

    wait: float = 0.0
    name: ClassVar[str] = "delayed"
    source: ClassVar[str] = "the gate's self-test"

    def begin(self, layout, sites, memory):
        end = time.perf_counter() + self.wait
        while time.perf_counter() < end:
            pass
        super().begin(layout, sites, memory)
'''


@dataclass(frozen=True)
class Proof:
    """One thing that the gate must do, and whether it did."""

    name: str
    passed: bool
    said: str


def self_test(as_json: bool = False) -> int:
    """Run it in a folder of its own and print what came out. Returns the exit code: 0 where the gate did everything right, else 1."""
    from ..core import plugins, registry

    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder:
        plugin, plan = Path(folder, "delayed.py"), Path(folder, "self-test.toml")
        plugin.write_text(METHOD, encoding="utf-8")
        plan.write_text(PLAN, encoding="utf-8")
        if "delayed" not in registry.methods:
            plugins.load(plugin)
        proofs = [*_pairs(plan, plugin), _empty()]
    if as_json:
        echo_json([vars(proof) for proof in proofs])
    else:
        for proof in proofs:
            click.echo(f"{'passed' if proof.passed else 'FAILED'}: {proof.name}: {proof.said}")
    return 0 if all(proof.passed for proof in proofs) else 1


def _pairs(plan: Path, plugin: Path) -> list[Proof]:
    """Equal arms and a slowed arm, measured in the same processes and judged by the same rule."""
    from ..gate.comparison import measure_until_decided, verdicts
    from ..plan import schema as plans
    from ..stats.paired_test import Rule
    from ..trial.request import Task, TrialRequest
    from ..workflows.pairs import PairRunner, Side, cells_of

    loaded = plans.load(str(plan))
    options = TrialRequest(loaded.timeout, 1, (str(plugin),), task=Task.TIMES)
    (planned,) = cells_of(loaded, "cpu", ["delayed 1/2"], images=3).values()
    before = {EQUAL: _delayed(planned, 0.0, 3), SLOWED: _delayed(planned, 0.0, 4)}
    wait = SLOWER * _latency(before, options)
    after = {EQUAL: before[EQUAL], SLOWED: _delayed(planned, wait, 4)}
    course = PairRunner(Side("before", before, options), Side("after", after, options))
    rule = Rule(DELTA, 2)
    pairs = measure_until_decided(before, course.round, rule)
    rows = {row.label: row for row in verdicts(pairs, rule, "methods") if row.metric in ("latency", "status")}
    return [_proof(rows[EQUAL], "regressed", False), _proof(rows[SLOWED], "regressed", True)]


def _delayed(planned: Planned, wait: float, images: int) -> Planned:
    """The case with that wait; cells of one process differ in how often they generate."""
    case = replace(planned.case, knobs={**planned.case.knobs, "wait": wait}, repeats=images)
    return replace(planned, case=case)


def _latency(cells: Mapping[str, Planned], request: TrialRequest) -> float:
    """Seconds of a generation as it is, from a process of its own."""
    from ..core.errors import Infrastructure
    from ..workflows.pairs import Side

    outcome = Side("before", cells, request).measure([EQUAL])[EQUAL]
    found = outcome.median("latency")
    if found is None:
        last = outcome.log.strip().splitlines()[-1]
        raise Infrastructure(f"The self-test's model does not run here: {last}", remedy="See: cachemark doctor")
    return found


def _proof(row: Verdict, verdict: str, wanted: bool) -> Proof:
    passed = (row.verdict == verdict) is wanted and row.metric == "latency"
    what = f"{row.label}, {100 * SLOWER:.0f} % longer," if wanted else row.label
    return Proof(f"{what} must {'' if wanted else 'not '}be {verdict}", passed, f"{row.verdict}, {row.reason}")


def _empty() -> Proof:
    """A comparison of no cells must not pass."""
    from ..gate.comparison import Tally

    code = Tally((), 0).exit_code
    return Proof("an empty plan must not pass", code == 4, f"exit code {code}")
