"""Proofs: a method, a model or a metric by the checks of the kit, and the gate by what it must and must not report.

What a plug-in brings is checked in a process of its own, whose end or silence is a finding and does not end the command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..core import plugin_modules as plugin_modules
from ..core.errors import BadPlugin, BadStore, CachemarkError, Infrastructure, NothingMeasured, Unsupported
from ..core.units import METRICS, TIME
from ..core.verdicts import REGRESSED
from ..gate.comparison import OTHER_METHODS, Tally, measure_until_decided, verdicts
from ..kit.findings import Checked, Flaw, KitProof
from ..kit.method_kit import check_method, check_metric, check_model
from ..kit.metric_checks import metric_example
from ..machine.keeper import COMPILES_ALONE
from ..methods.registry import METHODS
from ..models.protocol import Request
from ..models.registry import MODELS
from ..plans import schema as plans
from ..plans.expand import Planned
from ..plans.installed_things import TABLES, require
from ..plugins import installed
from ..plugins import loading as plugins
from ..stats.paired_test import Rule
from ..store.rows import Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .pairs import Pair, PairRunner, Side, configs_of, measure
from .session import Machine
from .stores import reading

OnCheck = Callable[[Checked], None]
OnStep = Callable[[str], None]
REGISTRATION = {  # how a plug-in registers a thing of each kind
    "methods": "@cachemark.method('name')", "models": "cachemark.models.registry.MODELS.add('name')",
    "metrics": "@cachemark.core.registry.metrics.add('name')",
}
SILENCE = 600.0  # seconds without a check, after which none is expected
ENDS = "every check comes to its end"
ENDS_ASKS = "No check ends the process that it is made in, or keeps it for good."
SELF_TEST = Path(__file__).parents[1] / "data" / "self_test"
DELTA, SLOWER = 0.20, 0.60  # minimum effect, and how much longer the slowed side takes
EQUAL, SLOWED = "A/A test", "slowed side"


def _silent(checked: Checked) -> None:
    pass


# -- the kit --------------------------------------------------------------------------------------------------------------
def prove_method(named: str | Path, *, knobs: Mapping[str, Any] | None = None, on_check: OnCheck = _silent) -> list[KitProof]:
    """Make every check of the kit on a method, by its name or on those of a Python file. ``knobs`` go beside those of its budgets.
    ``on_check`` is called after each check. What a plug-in brings is checked in a process of its own, on one thread, in which its file is
    imported too. UnknownName where there is none, BadPlugin where the file has none, BadKnob for knobs that it has not."""
    return _prove("methods", named, dict(knobs or {}), on_check)


def prove_model(named: str | Path, *, weights: str = "", decoder_weights: str = "", on_check: OnCheck = _silent) -> list[KitProof]:
    """Make every check of the kit on a model, by its name or on those of a Python file, as :func:`prove_method` does. It is loaded with
    the weights that are named, else with those that it has without any."""
    return _prove("models", named, {"weights": weights, "decoder_weights": decoder_weights}, on_check)


def prove_metric(named: str | Path, *, on_check: OnCheck = _silent) -> list[KitProof]:
    """Make every check of the kit on a metric of a plug-in, by its name or on those of a Python file, as :func:`prove_method` does.
    Unsupported for one of cachemark itself."""
    if str(named) in METRICS:
        raise Unsupported(f"{named} is a metric of cachemark itself.", remedy="Name one of a plug-in or of an installed package.")
    return _prove("metrics", named, {}, on_check)


def names_of(kind: installed.Kind, named: str | Path) -> list[str]:
    """The things of a kind that are meant: all of a file, which is imported, or the one of that name."""
    table = TABLES[kind]
    if _is_file(named):
        plugins.load(named)
        names = [name for name in table if (origin := plugins.origin(table.get(name))) and origin[0] == str(Path(named).resolve())]
        if not names:
            raise BadPlugin(f"Plug-in {str(named)!r} registers no {table.kind}.", remedy=f"Register one with {REGISTRATION[kind]}.")
        return names
    require(kind, [str(named)])
    table.get(str(named))
    return [str(named)]


def _is_file(named: str | Path) -> bool:
    return Path(named).suffix == ".py" or "/" in str(named)


def _prove(kind: installed.Kind, named: str | Path, options: Mapping[str, Any], on_check: OnCheck) -> list[KitProof]:
    if _is_of_plugin(kind, named):
        return _prove_apart(kind, str(named), options, on_check)
    return [check(on_check) for check in _checks(kind, named, options).values()]


def _is_of_plugin(kind: installed.Kind, named: str | Path) -> bool:
    """True of a file, and of the name of what a plug-in or an installed package brings."""
    if _is_file(named):
        return True
    if (name := str(named)) in TABLES[kind]:
        return plugins.origin(TABLES[kind].get(name)) is not None
    return installed.offer(kind, name) is not None


def _checks(kind: installed.Kind, named: str | Path, options: Mapping[str, Any]) -> dict[str, Callable[[OnCheck], KitProof]]:
    """The checks of what is meant, by its name. ``options``: the knobs of methods, the fields of the request of models."""
    names = names_of(kind, named)
    if kind == "methods":
        for name in names:
            METHODS.get(name).build(options)  # knobs that one of them has not are refused before any check
        return {name: partial(check_method, METHODS.get(name), options) for name in names}
    if kind == "models":
        return {name: partial(check_model, MODELS.get(name), request=Request(**options)) for name in names}
    return {name: partial(check_metric, metric_example(name)) for name in names}


def _prove_apart(kind: installed.Kind, named: str, options: Mapping[str, Any], on_check: OnCheck) -> list[KitProof]:
    """Make the checks in a process of their own. Where that ends or is silent before its last word, the check that it was at fails."""
    copies = sys.platform == "linux" and threading.active_count() == 1 and not torch.cuda.is_initialized()
    # a copy of a process with threads or a device is not the same as a new one
    context: Any = multiprocessing.get_context("fork" if copies else "spawn")
    answers, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, kind, named, dict(options), plugin_modules.files()))
    process.start()
    sending.close()
    proofs, why = dict[str, list[Checked]](), ""
    try:
        while not why:
            ready = wait([answers, process.sentinel], SILENCE)
            if answers in ready and (message := _received(answers)) is not None:
                name, checked = message
                if name:
                    proofs.setdefault(name, []).extend([checked] if checked else [])
                if checked:
                    on_check(checked)
                if not name:
                    break
            else:
                process.join(SILENCE if ready else 0)
                why = _ended(process.exitcode) if ready else f"nothing within {SILENCE:g} s"
    finally:
        _end(process)
    if why:
        if not proofs:
            raise BadPlugin(f"Plug-in {named!r} could not be checked: {why}.",
                            remedy=f"Leave that out of the file and of what makes the {TABLES[kind].kind}.")
        checks = list(proofs.values())[-1]
        expected = f"the end of the check behind {checks[-1].name!r}" if checks else "the end of the first check"
        checks.append(Checked(ENDS, ENDS_ASKS, (Flaw(expected, why),), examples=1))
        on_check(checks[-1])
    return [KitProof(TABLES[kind].kind, name, tuple(checks)) for name, checks in proofs.items()]


def _received(answers: Any) -> tuple[str, Checked | None] | None:
    """The next message of :func:`_answer`, None where the process ended instead. Raises an error that it was refused with."""
    try:
        message = answers.recv()
    except (EOFError, OSError):
        return None
    if isinstance(message, CachemarkError):
        raise message
    return message


def _answer(sending: Connection, kind: installed.Kind, named: str, options: Mapping[str, Any], files: list[str]) -> None:
    """Make the checks in this process, after the plug-ins that its parent has imported. Sends the name of a thing with nothing as its
    checks begin and then with each check, an error that refuses it, and an empty name at the end."""
    os.setsid()  # Ctrl-C is for the parent alone
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.update(COMPILES_ALONE)
    torch.set_num_threads(1)  # those that the parent may have started are not in its copy
    try:
        for file in files:
            plugins.load(file)
        for name, check in _checks(kind, named, options).items():
            sending.send((name, None))
            check(lambda checked, name=name: sending.send((name, checked)))  # type: ignore[misc]
        sys.stdout.flush()
        sending.send(("", None))
    except CachemarkError as error:
        sending.send(error)
    except Exception as error:
        traceback.print_exc()
        if fault := plugin_modules.fault(error):
            sending.send(fault)
        sys.exit(1)


def _ended(code: int | None) -> str:
    return f"its process ended by signal {-code}" if code is not None and code < 0 else f"its process ended with exit code {code}"


def _end(process: Any) -> None:
    """Kill a process with all that has stayed in its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


# -- the gate -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Proof:
    """One duty of the gate, and whether it was done."""

    name: str
    passed: bool
    said: str


def newest_device(store: str | Path) -> str:
    """The device class of the newest run of a store; without one, that of this machine."""
    try:
        with reading(store) as source:
            return "cuda" if source.run().environment.facts.get("cuda") else "cpu"
    except (BadStore, NothingMeasured):
        return "cuda" if torch.cuda.is_available() else "cpu"


def self_test(machine: Machine | str = "cpu", on_step: OnStep = lambda said: None) -> tuple[Proof, ...]:
    """Show the gate A/A tests, a slowed side and a comparison of nothing, timed by the clock of the machine's device. ``on_step`` is called
    with a line before it measures and after each pair. Raises Infrastructure where the device is not to be had, or the model does not run
    on it."""
    machine = Machine.of(machine)
    machine.require()
    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder, machine.places() as places:
        plugin = Path(folder, "delayed.py")
        plugin.write_text((SELF_TEST / "delayed.py.txt").read_text(encoding="utf-8"), encoding="utf-8")
        if "delayed" not in METHODS:
            plugins.load(plugin)
        loaded = plans.load(str(SELF_TEST / "plan.toml"))
        request = TrialRequest(loaded.timeout, machine.threads, (str(plugin),), Task.TIMES, memory_cap=machine.memory_cap)
        (planned,) = configs_of(loaded, machine.device, ["delayed 1/2"], images=3).values()
        return (*_pairs(planned, request, places, on_step), _empty())


def _pairs(planned: Planned, request: TrialRequest, executor: Executor, on_step: OnStep) -> list[Proof]:
    """A/A tests and a slowed side, measured in the same processes and judged by the same rule."""
    before = {EQUAL: _delayed(planned, 0.0, 3), SLOWED: _delayed(planned, 0.0, 4)}
    on_step("How long does a generation take?")
    seconds = SLOWER * _latency(before, request, executor)
    after = {EQUAL: before[EQUAL], SLOWED: _delayed(planned, seconds, 4)}
    rule = Rule(DELTA, 2)
    most = max(rule.looks[-1], rule.looks[0] + rule.fresh)

    def tell(pair: Pair) -> None:
        on_step(f"{pair.config}: pair {pair.number} of {rule.looks[0]} to {most}")

    runner = PairRunner(Side("before", before, request), Side("after", after, request), executor, on_pair=tell)
    rows = verdicts(measure_until_decided(before, runner.round, rule, alike=OTHER_METHODS), rule, OTHER_METHODS)
    timed = {row.label: row for row in rows if row.metric in (TIME, "status")}
    return [_proof(timed[EQUAL], REGRESSED, False), _proof(timed[SLOWED], REGRESSED, True)]


def _delayed(planned: Planned, wait: float, images: int) -> Planned:
    """The case with that wait; configurations of one process differ in how often they generate."""
    case = replace(planned.case, knobs={**planned.case.knobs, "wait": wait}, repeats=images)
    return replace(planned, case=case)


def _latency(configs: Mapping[str, Planned], request: TrialRequest, executor: Executor) -> float:
    """Seconds of a generation as it is, from a process of its own."""
    outcome = measure([Side("before", configs, request)], [EQUAL], executor)[0][EQUAL]
    found = outcome.median(TIME)
    if found is None:
        last = (outcome.log.strip().splitlines() or [str(outcome.status)])[-1]
        raise Infrastructure(f"The self-test's model does not run here: {last}", remedy="See: cachemark doctor")
    return found


def _proof(row: Verdict, verdict: str, wanted: bool) -> Proof:
    passed = (row.verdict == verdict) is wanted and row.metric == TIME
    name = f"{row.label}, {100 * SLOWER:.0f} % longer," if wanted else row.label
    return Proof(f"{name} must {'' if wanted else 'not '}be {verdict}", passed, f"{row.verdict}, {row.reason}")


def _empty() -> Proof:
    """A comparison of no configurations must not pass."""
    code = Tally((), 0).exit_code
    return Proof("an empty plan must not pass", code == 4, f"exit code {code}")
