"""What each kind of stage does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from cachemark.core.limits import Rates
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import digest
from cachemark.core.verdicts import NOT_COMPARED, REGRESSED
from cachemark.gate.comparison import AA
from cachemark.machine import rates
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.reuse import code_identity
from cachemark.plans.schema import Cells, MethodTable, Plan
from cachemark.store.db import Store
from cachemark.store.rows import Verdict
from cachemark.trial.child.bench import Bench
from cachemark.workflows import compare
from cachemark.workflows.doctor import doctor
from cachemark.workflows.prove import SELF_TEST
from cachemark.workflows.run import run as measure
from cachemark.workflows.session import Machine, RunWatcher

from . import kernels
from .folder import BEFORE, STORE, Folder
from .home import identity
from .rehearsal import rehearsed
from .runner import CUT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS, DEVICE, WINDOWS = "tests.jsonl", "device.json", "profiles.json"
ONE_WINDOW = 40.0  # seconds of a profile: loading, three generations and the trace
SHARE, DELTA = 0.03, 0.02  # injected slowdown as a fraction of a case's time, and the smallest change to detect
LARGE, FEW_PAIRS = 0.5, 30.0  # the same in a rehearsal, which gives no verdict, and the seconds in which its pairs begin
ENDING = 90.0  # seconds at the end of a comparison without new pairs: one pair, and the work after the last
DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class Task:
    """A stage with its time limit in ``seconds``; a rehearsal replaces graph and auto by ``engine``."""

    folder: Folder
    work: Path
    seconds: float
    rehearse: bool = False
    engine: str = "eager"
    began: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> str:
        return "cpu" if self.rehearse else "cuda"

    @property
    def machine(self) -> Machine:
        return Machine(self.device, 1) if self.rehearse else Machine(self.device)

    @property
    def left(self) -> float:
        """Seconds until it should end."""
        return self.seconds - (time.monotonic() - self.began)

    def plan(self, name: str) -> Plan:
        """A plan of the campaign, over small models in a rehearsal."""
        loaded = plans.load(str(HERE / f"{name}.toml"))
        return rehearsed(loaded, engine=self.engine) if self.rehearse else loaded


Work = Callable[[Task], int]


# -- plans ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Keeper(RunWatcher):
    """Takes every outcome into the folder as soon as it is stored."""

    task: Task

    def ended(self, outcome: Outcome) -> None:
        latency = outcome.median("latency")
        print(f"{outcome.case.model}, {outcome.case.label}, batch {outcome.case.batch}, {outcome.case.engine}: {outcome.status}"
              + (f", {latency:.3g} s a batch" if latency else ""), flush=True)
        self.task.folder.collect(self.task.work / STORE)


def blocks(plan: Plan, stage: int) -> Plan:
    """The blocks of a stage: those whose priority has it for its tens."""
    return plan.model_copy(update={"cells": [cells for cells in plan.cells if cells.priority // 10 == stage]})


def measured(stage: int) -> Work:
    """Measures the blocks of a stage, as far as time allows."""

    def work(task: Task) -> int:
        run = measure(blocks(task.plan("campaign"), stage), task.work / STORE, machine=task.machine, seconds=task.left,
                              progress=Keeper(task))
        ends = Counter(str(outcome.status) for outcome in run.outcomes)
        print("cases: " + ", ".join(f"{count} {status}" for status, count in ends.most_common()))
        return CUT if Status.NOT_REACHED in ends else int(Status.ERROR in ends)

    return work


# -- an older build ---------------------------------------------------------------------------------------------------
OLDER = """
name = "before"
timeout = 480.0
timing = {{ warmup = 1, repeats = 3 }}
fidelity = {{ samples = {batch} }}

[[cells]]
model = "{model}"
methods = ["linear"]
budgets = ["1/6"]
batch = {batch}
dtype = "{dtype}"
engine = "{engine}"
quality = false
"""  # with keys that every build since the first results on a GPU reads


def older(task: Task) -> int:
    """Measure the first block of the ladder with the older build in the folder ``before``, by that build's own command."""
    checkout = Path(task.folder.facts["before"])
    plan, store = task.work / "before.toml", task.work / "before.sqlite"
    plan.write_text(OLDER.format_map(task.plan("campaign").cells[0].model_dump()), encoding="utf-8")
    paths = [str(checkout / "suite"), os.environ.get("PYTHONPATH")]
    command = [sys.executable, "-m", "cachemark", "run", str(plan), "--device", task.device, "--store", str(store),
               *(["--threads", str(task.machine.threads)] if task.rehearse else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if code := subprocess.run(command, cwd=checkout, env=environment, check=False).returncode:
        return code
    with Store.open(store, create=False) as opened:
        record = opened.runs()[0]
        timed = [outcome for outcome in opened.outcomes(record.id) if outcome.case.role in ("baseline", "candidate")]
    cases = [{"identity": identity(outcome), "seconds": outcome.median("latency_tokens")} for outcome in timed]
    task.folder.write(BEFORE, {"build": checkout.name, "code": record.code, "cases": cases})
    print(", ".join(f"{outcome.case.label}: {outcome.status}" for outcome in timed))
    return int(not all(outcome.ok for outcome in timed))


# -- kernels ----------------------------------------------------------------------------------------------------------
def compared_kernels(task: Task) -> int:
    """Time attention kernels beside each other, and compare them with fp64; a rehearsal interprets them and only compares."""
    if task.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from benchmarks.kernels import main

    main()
    return 0


# -- the device -------------------------------------------------------------------------------------------------------
def device_facts(task: Task) -> int:
    """Measure driver, bandwidth, FLOP/s by dtype, and launch overhead."""
    threads = task.machine.threads
    dtypes = DTYPES[:1] if task.rehearse else DTYPES
    rates_by_dtype = {dtype: vars(rate) for dtype, rate in rates.rates(task.device, threads, dtypes).items()}
    facts = {"rates": rates_by_dtype, "launches": kernels.launches(task.device), "doctor": doctor(quick=task.rehearse)}
    task.folder.write(DEVICE, facts)
    print(", ".join(f"{dtype}: {rate['bandwidth'] / 1e12:.3g} TB/s, "
                    f"{rate['peak_flops'] / 1e12:.4g} TFLOP/s" for dtype, rate in rates_by_dtype.items()))
    return 0


def profiled(roles: Mapping[str, str]) -> Work:
    """Profile some passes of one case of each model: the ``baseline`` or the first ``candidate`` of its first block."""

    def work(task: Task) -> int:
        profiles = task.folder.read(WINDOWS)
        plan, rates_by_dtype = task.plan("campaign"), task.folder.read(DEVICE).get("rates", {})
        for name, role in roles.items():
            planned = first_case(plan, small_name(task, name), role, task.device)
            if measured := rates_by_dtype.get(planned.case.dtype):
                planned = Prepared.of(planned, rates=Rates(**measured))
            if kernels.title(planned) in profiles:
                continue
            if task.left < ONE_WINDOW:
                print("time is up")
                return CUT
            profile = kernels.window(planned, Bench.load(planned), task.device)
            profiles[profile["case"]] = profile
            task.folder.write(WINDOWS, profiles)
            print(f"{profile['case']}: {profile['wall_us']:.0f} us, of them kernels {profile['busy_us']:.0f} us", flush=True)
            torch.cuda.empty_cache()
        return 0

    return work


def first_case(plan: Plan, model: str, role: str, device: str) -> Prepared:
    """Return the first case of a role in the first block of a model."""
    cells = next(cells for cells in plan.cells if cells.model == model)
    planned_cases = expand(plan.model_copy(update={"cells": [cells], "quality": None}), device)
    return Prepared.of(next(planned for planned in planned_cases if planned.case.role == role))


def small_name(task: Task, model: str) -> str:
    """A model's name in the plan of this task."""
    if not task.rehearse:
        return model
    return rehearsed(Plan(name="one", cells=[Cells(model=model, methods=["full"])])).cells[0].model


# -- pairs ------------------------------------------------------------------------------------------------------------
def compared(task: Task) -> int:
    """Compares the full cache with LineAR in pairs of fresh processes."""
    verdict = _paired(task, task.plan("pairs"), ("full", "linear 1/6"), ())
    print(f"linear 1/6 against full: {verdict.reason}")
    return int(verdict.verdict == NOT_COMPARED)


def gate(task: Task) -> int:
    """Shows the gate A/A tests, and a side that takes three per cent more."""
    plugin = task.work / "delayed.py"
    plugin.write_text((SELF_TEST / "delayed.py.txt").read_text(encoding="utf-8"), encoding="utf-8")
    plan = task.plan("pairs")
    alone = measure(with_methods(plan, "delayed"), task.work / STORE, machine=task.machine, plugins=[plugin])
    seconds = next(outcome.median("latency") for outcome in alone.outcomes if outcome.case.role == "candidate")
    if seconds is None:
        print("the case that should be delayed does not run here: " + alone.outcomes[-1].log.strip().splitlines()[-1])
        return 1
    longer = MethodTable.model_validate({"name": "delayed", "variant": "longer", "wait": SHARE * seconds})
    planted = with_methods(plan, "delayed", longer)
    verdict = _paired(task, planted, ("delayed 1/6", "delayed: longer 1/6"), (plugin,))
    print(f"{SHARE:.0%} of {seconds:.3g} s planted is {'found' if verdict.verdict == REGRESSED else verdict.verdict}: {verdict.reason}")
    return int(verdict.verdict == NOT_COMPARED)


def with_methods(plan: Plan, *methods: str | MethodTable) -> Plan:
    """The plan with other methods."""
    return plan.model_copy(update={"cells": [cells.model_copy(update={"methods": list(methods)}) for cells in plan.cells]})


def _paired(task: Task, plan: Plan, sides: tuple[str, str], plugins: tuple[Path, ...]) -> Verdict:
    """Return the verdict on the latency of two cases, and print the A/A tests."""
    delta, seconds = (LARGE, FEW_PAIRS) if task.rehearse else (DELTA, task.left - ENDING)
    terms = compare.Terms(delta, max(0.0, seconds) / 60)
    comparison = compare.compare(plan, task.work / STORE, cases=sides, machine=task.machine, plugins=plugins, samples=0, terms=terms)
    timed = [row for row in comparison.tally.rows if row.metric in ("latency", "status")]
    for row in timed:
        print(f"{row.label}: {row.verdict}, {row.reason}", flush=True)
    return next(row for row in timed if not row.label.startswith(AA))


# -- tests ------------------------------------------------------------------------------------------------------------
def tested(*files: str) -> Work:
    """Run tests in order: first one of every kind; tests that passed with this code are skipped."""

    def work(task: Task) -> int:
        os.environ["CACHEMARK_GPU_SEEN"] = str(task.folder.path)
        if task.rehearse:
            os.environ["CACHEMARK_REHEARSE"] = "1"
        notes = TestNotes(task, digest([code_identity()["hash"], *((ROOT / file).read_text(encoding="utf-8") for file in files)]))
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-m", "gpu", f"--rootdir={ROOT}", *(str(ROOT / file) for file in files)],
                           plugins=[notes])
        print(notes.summary)
        return CUT if notes.stopped else int(code != pytest.ExitCode.OK)

    return work


@dataclass
class TestNotes:
    """A pytest plug-in that records each finished test with the ``code`` it ran, and stops in time."""

    __test__ = False

    task: Task
    code: str
    stopped: bool = False
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def summary(self) -> str:
        return "tests: " + (", ".join(f"{count} {end}" for end, count in self.ends.most_common()) or "none was left to run")

    @property
    def file(self) -> Path:
        return self.task.folder.path / TESTS

    def passed(self) -> set[str]:
        """Tests that have passed with this code."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        return {note["test"] for note in map(json.loads, lines) if (note["end"], note["code"]) == ("passed", self.code)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kinds, passed = Counter[str](), self.passed()
        turns: list[tuple[int, int, pytest.Item]] = []
        for item in items:
            kind = item.nodeid.partition("[")[0]
            turns.append((kinds[kind], len(turns), item))
            kinds[kind] += 1
        items[:] = [item for _, _, item in sorted(turns, key=lambda turn: turn[:2]) if item.nodeid not in passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        self.ends[report.outcome] += 1
        why = str(report.longrepr).strip().splitlines()[-1][:400] if not report.passed else ""
        note = {"test": report.nodeid, "end": report.outcome, "seconds": round(report.duration, 2), "why": why, "code": self.code}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is not None and self.task.left < 0:
            self.stopped, item.session.shouldstop = True, "time is up"
