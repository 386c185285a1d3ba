"""Tests of a method, a model or a metric by the kit, and the self-test of the gate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..core.errors import BadPlugin, Infrastructure, Unsupported
from ..core.units import METRICS, TIME
from ..core.verdicts import REGRESSED
from ..gate.comparison import OTHER_METHODS, PairOfOutcomes, Tally, measure_until_decided, verdicts
from ..kit.findings import KitReport, KitResult
from ..kit.metric_checks import metric_example
from ..kit.runner import PlannedCheck, method_checks, metric_checks, model_checks
from ..methods.registry import METHODS
from ..models.protocol import Request
from ..models.registry import MODELS
from ..plans import schema as plans
from ..plans.planned import Prepared
from ..plugins import installed, loading as plugins
from ..stats.paired_test import Rule
from ..store.rows import Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .pairs import PairRunner, Side, configs_of, measure
from .session import Machine

OnCheck = Callable[[str, KitResult], None]
UNHEARD: OnCheck = lambda name, result: None  # noqa: E731
OnStep = Callable[[str], None]
REGISTRATION = {  # registration in a plug-in, by kind
    "methods": "@cachemark.method('name')", "models": "cachemark.models.registry.MODELS.add('name')",
    "metrics": "@cachemark.core.registry.metrics.add('name')",
}
SELF_TEST = Path(__file__).parents[1] / "data" / "self_test"
DELTA, SLOWER = 0.20, 0.60  # minimum effect, and the slowdown of the slowed side
EQUAL, SLOWED = "A/A test", "slowed side"


# -- the kit --------------------------------------------------------------------------------------------------------------
def prove_method(named: str | Path, *, parameters: Mapping[str, Any] | None = None, on_check: OnCheck = UNHEARD) -> list[KitReport]:
    """Run every check of the kit on a method, or on all methods of a Python file, on one thread.

    ``parameters`` are set in addition to the parameters of a budget. ``on_check`` is called with the name and each result. Raises
    UnknownName, BadPlugin for a file without a method, and BadParameter.
    """
    return _prove("methods", named, dict(parameters or {}), on_check)


def prove_model(named: str | Path, *, weights: str = "", decoder_weights: str = "", on_check: OnCheck = UNHEARD) -> list[KitReport]:
    """Run every check of the kit on a model, or on all models of a Python file.

    See :func:`prove_method`.
    """
    return _prove("models", named, {"weights": weights, "decoder_weights": decoder_weights}, on_check)


def prove_metric(named: str | Path, *, on_check: OnCheck = UNHEARD) -> list[KitReport]:
    """Run every check of the kit on a metric of a plug-in, or on all metrics of a Python file.

    See :func:`prove_method`. Raises Unsupported for a built-in metric.
    """
    if str(named) in METRICS:
        raise Unsupported(f"{named} is a metric of cachemark itself.", remedy="Name one of a plug-in or of an installed package.")
    return _prove("metrics", named, {}, on_check)


def names_of(kind: installed.Kind, named: str | Path) -> list[str]:
    """Return the names of the things of a kind in a Python file, which is imported, or the given name."""
    table = plugins.TABLES[kind]
    if Path(named).suffix == ".py" or "/" in str(named):
        plugins.load(named)
        names = [name for name in table if (origin := plugins.origin(table.get(name))) and origin[0] == str(Path(named).resolve())]
        if not names:
            raise BadPlugin(f"Plug-in {str(named)!r} registers no {table.kind}.", remedy=f"Register one with {REGISTRATION[kind]}.")
        return names
    plugins.require(kind, [str(named)])
    table.get(str(named))
    return [str(named)]


def planned_checks(kind: installed.Kind, named: str | Path, options: Mapping[str, Any]) -> dict[str, list[PlannedCheck]]:
    """Return the checks by name. ``options``: parameters of a method, or fields of a model's request."""
    names = names_of(kind, named)
    if kind == "methods":
        for name in names:
            METHODS.get(name).build(options)  # raises BadParameter before any check runs
        return {name: list(method_checks(METHODS.get(name), options)) for name in names}
    if kind == "models":
        requests = {name: Request.of(name, **options) for name in names}
        return {name: list(model_checks(MODELS.get(name).for_request(request), request)) for name, request in requests.items()}
    return {name: list(metric_checks(metric_example(name))) for name in names}


def _prove(kind: installed.Kind, named: str | Path, options: Mapping[str, Any], on_check: OnCheck) -> list[KitReport]:
    reports, threads = [], torch.get_num_threads()
    for name, checks in planned_checks(kind, named, options).items():
        results = []
        torch.set_num_threads(1)
        try:
            for check in checks:
                results.append(check.run())
                on_check(name, results[-1])
        finally:
            torch.set_num_threads(threads)
        reports.append(KitReport(plugins.TABLES[kind].kind, name, tuple(results)))
    return reports


# -- the gate -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Proof:
    """One requirement of the gate and whether it is met."""

    name: str
    passed: bool
    reason: str


def self_test(machine: Machine | str = "cpu", on_step: OnStep = lambda message: None) -> tuple[Proof, ...]:
    """Test the gate with an A/A test, a slowed side and an empty comparison.

    ``on_step`` is called with a message before it measures and after each pair. Raises Infrastructure if the device is not available or
    the model does not run on it.
    """
    machine = Machine.parse(machine)
    machine.require()
    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder, machine.places() as places:
        plugin = Path(folder, "delayed.py")
        plugin.write_text((SELF_TEST / "delayed.py.txt").read_text(encoding="utf-8"), encoding="utf-8")
        if "delayed" not in METHODS:
            plugins.load(plugin)
        loaded = plans.load(str(SELF_TEST / "plan.toml"))
        request = TrialRequest(loaded.timeout, machine.threads, (str(plugin),), Task.TIMES, memory_cap=machine.memory_cap)
        (planned,) = configs_of(loaded, machine.device, ["delayed 1/2"], images=3).values()
        code = Tally((), 0).exit_code
        empty = Proof("an empty plan must not pass", code == 4, f"exit code {code}")
        return (*_pairs(planned, request, places, on_step), empty)


def _pairs(planned: Prepared, request: TrialRequest, executor: Executor, on_step: OnStep) -> list[Proof]:
    """Measure an A/A test and a slowed side in the same processes, and test them by the same rule."""
    before = {EQUAL: _delayed(planned, 0.0, 3), SLOWED: _delayed(planned, 0.0, 4)}
    on_step("How long does a generation take?")
    outcome = measure([Side("before", before, request)], [EQUAL], executor)[0][EQUAL]  # in a separate process
    if (latency := outcome.median(TIME)) is None:
        last = (outcome.log.strip().splitlines() or [str(outcome.status)])[-1]
        raise Infrastructure(f"The self-test's model does not run here: {last}", remedy="See: cachemark doctor")
    seconds = SLOWER * latency
    after = {EQUAL: before[EQUAL], SLOWED: _delayed(planned, seconds, 4)}
    rule = Rule(DELTA, 2)
    most = max(rule.interims[-1], rule.interims[0] + rule.looks[-1])

    def report(pair: PairOfOutcomes) -> None:
        on_step(f"{pair.config}: pair {pair.number} of {rule.interims[0]} to {most}")

    runner = PairRunner(Side("before", before, request), Side("after", after, request), executor, on_pair=report)
    rows = verdicts(measure_until_decided(before, runner.round, rule, alike=OTHER_METHODS), rule, OTHER_METHODS)
    timed = {row.label: row for row in rows if row.metric in (TIME, "status")}
    return [_proof(timed[EQUAL], False), _proof(timed[SLOWED], True)]


def _delayed(planned: Prepared, wait: float, images: int) -> Prepared:
    """Return the case with this delay; cases of one process differ in their number of generations."""
    case = replace(planned.case, parameters={**planned.case.parameters, "wait": wait}, repeats=images)
    return replace(planned, case=case)


def _proof(row: Verdict, must_regress: bool) -> Proof:
    passed = (row.verdict == REGRESSED) is must_regress and row.metric == TIME
    name = f"{row.label}, {100 * SLOWER:.0f} % longer," if must_regress else row.label
    return Proof(f"{name} must {'' if must_regress else 'not '}be {REGRESSED}", passed, f"{row.verdict}, {row.reason}")
