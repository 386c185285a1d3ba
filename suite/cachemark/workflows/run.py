"""Measure a plan into a store: its cases, the largest batches, or a share of its quality images."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..core.calls import strict
from ..core.errors import Unsupported
from ..core.facts import ProcessBias
from ..core.limits import Rates
from ..core.result import PRICE, Environment, Outcome, Status
from ..core.spec import MAX_BATCH, QUALITY_PASS, Case
from ..gate import anchors
from ..gate.nights import shown_process_bias
from ..machine.environment import slug
from ..plans.deadline import Deadline, breadth_first, groups
from ..plans.expand import expand
from ..plans.planned import Planned, Prepared
from ..plans.reuse import Earlier, code_identity, no_commit
from ..plans.schema import PLUGIN_FILES, Plan, load
from ..plugins import loading
from ..store.db import Store
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from ..trial.supervisor import Finished, always, unmeasured
from . import max_batch as search
from .known_seeds import with_known_seeds
from .pending import decide
from .progress import watcher
from .results import Measured, Run
from .session import DEFAULT_STORE, UNWATCHED, Machine, RunWatcher, checked
from .time_left import TimeLeft, deadline
from .weights import fetch_named

PART = "plan=cm.plan(…).only({}=…)"
HINTS = {"threads": "machine=cm.Machine(threads=…)",
         **dict.fromkeys(("codec", "decoder", "guidance", "sampling"), "it into a plan, and use cm.run")}
RUN_HINTS = {**HINTS, **{name: PART.format(f"{name.rstrip('s')}s") for name in ("model", "models", "budgets")},
             **dict.fromkeys(("seeds", "batch", "dtype", "engine"), "it into a plan, or use cm.measure(model, methods, seeds=…)")}


@strict("run", RUN_HINTS)
def run(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False, reuse_quality: bool | None = None, seconds: float | None = None,
    price: float = 0.0, fetch: bool = False, samples: str | Path | None = None, progress: bool | RunWatcher = True,
) -> Run:
    """Measure the cases of a plan that the store does not have, and return the run.

    Samples of a case that the store has from a smaller number of samples are not generated again, but the case is timed again.

    ``plan``: a plan, the name of a shipped plan, or a TOML file. ``methods`` and the methods of ``plugins`` join every block that they
    can run in. ``fresh`` measures every case again; ``reuse_quality`` then keeps earlier quality values if the tokens did not change
    (default: unless ``fresh``). With ``seconds`` cases run by priority until the time is up, and the rest is ``not_reached``. With
    ``price``, of one device per hour, every case of the run has a cost of 1,000 images. ``samples``: a folder for the images of each
    case's quality pass, as sample batches for other evaluators; stored cases have none. ``progress``: print the progress on standard error,
    or callbacks of your own. An interruption keeps every completed case.
    """
    if fetch:
        for cells in (plan if isinstance(plan, Plan) else load(str(plan))).cells:
            fetch_named(cells.model, cells.weights, cells.decoder_weights)
    machine, loaded, files, cases = checked(plan, machine, plugins, methods)
    with Store.open(store) as target:
        with machine.places() as places:
            until = None if seconds is None else deadline(seconds, target, machine, places)
            runner = PlanRunner(loaded, target, places, machine, files, watcher(progress), until, cases, price, samples)
            measured = runner.measure(fresh=fresh, reuse=not fresh if reuse_quality is None else reuse_quality)
        return Run(store, measured.run_id, measured, (*places.notes, *_anchored(loaded, target, measured.run_id), *_unrecorded()))


def max_batch(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False, progress: bool | RunWatcher = True,
) -> Run:
    """Find the largest batch that fits, for the full cache and every candidate.

    The throughput is measured at this batch and at the plan's. On a CPU the machine needs a ``memory_cap``. Each batch is tried in a
    process of its own.
    """
    machine, loaded, files, cases = checked(plan, machine, plugins, methods, searches=True)
    cases = [search.searched(planned, machine.memory_cap) for planned in cases if planned.case.role in ("baseline", "candidate")]
    with Store.open(store) as target, machine.places() as places:
        measured = PlanRunner(loaded, target, places, machine, files, watcher(progress), cases=cases).measure(fresh=fresh)
    return Run(store, measured.run_id, measured, (*places.notes, *_unrecorded()))


def share(
    plan: Plan | str | Path, part: tuple[int, int], store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu",
    plugins: Sequence[str | Path] = (), methods: Sequence[str] = (), progress: bool | RunWatcher = True,
) -> list[Outcome]:
    """Generate one ``part`` (index from 0, number of parts) of the quality images of a plan.

    A later run uses them. Returns the outcomes of cases that failed. Raises Unsupported for a plan without a quality pass.
    """
    machine, loaded, files, cases = checked(plan, machine, plugins, methods)
    passes = [planned.case.evaluation[QUALITY_PASS] for planned in cases if QUALITY_PASS in planned.case.evaluation]
    if not passes:
        raise Unsupported(f"No case of plan {loaded.name} has a quality pass, so there are no quality images to share.",
                          remedy="Measure it with `cachemark run`. A table [quality] gives a plan such a pass, on models with weights.")
    if all("missing" in settings for settings in passes):
        missing = passes[0]["missing"]
        raise Unsupported(f"The quality pass of plan {loaded.name} cannot be made here, so there is nothing to share: {missing}")
    with Store.open(store) as target, machine.places() as places:
        return PlanRunner(loaded, target, places, machine, files, watcher(progress), cases=cases).make_share(part)


def _anchored(plan: Plan, store: Store, run_id: int) -> list[str]:
    """Return lines about the anchor of a plan."""
    if plan.anchor is None:
        return []
    results = [(o.case.model, *anchors.judge(anchors.Anchor(**plan.anchor.model_dump()), o)) for o in store.outcomes(run_id)
              if o.case.role == "baseline"]
    return [f"Anchor of {model}: {state}. {reason}" for model, state, reason in results]


def _unrecorded() -> list[str]:
    """Return a line if runs of this copy of the code record no commit."""
    return [f"No commit is recorded with this run. {reason}"] if (reason := no_commit()) else []


@dataclass
class PlanRunner:
    """Runner of a plan with an open store and an executor.

    With a ``deadline``, cases run by priority and breadth first; cases that cannot end before it are ``not_reached``, and a search for the
    largest batch ends with the batches tried so far. ``cases``: the expanded plan if it is known.
    """

    plan: Plan
    store: Store
    executor: Executor
    machine: Machine = field(default_factory=Machine)
    plugins: tuple[str, ...] = ()
    watcher: RunWatcher = UNWATCHED
    deadline: Deadline | None = None
    cases: list[Planned] = field(default_factory=list)
    price: float = 0.0  # of one device per hour
    samples: str | Path | None = None  # folder of sample batches
    _process_bias: ProcessBias | None = None  # results of A/A pairs on this machine
    _processes: dict[str, str] = field(default_factory=dict)  # by name: their numbers in this run, counted from 1
    _left: TimeLeft = field(default_factory=TimeLeft)

    def __post_init__(self) -> None:
        self.cases = self.cases or expand(self.plan, self.machine.device)

    def measure(self, *, fresh: bool = False, reuse: bool = True) -> Measured:
        """Reuse stored outcomes, measure the other cases, and return the run.

        If ``reuse``, quality is reused from an earlier outcome with the same tokens (:mod:`cachemark.plans.reuse`). An interruption keeps
        completed cases and marks the run interrupted.
        """
        planned_cases = search.limited(self.cases, self.machine.memory_cap)
        measured_rates = partial(self.executor.rates, self.machine.device, self.machine.threads)
        here, cases = _rated(*self._decided(planned_cases, fresh), measured_rates)
        with self._new_run(here, cases) as measured:
            todo = self._with_caches(cases)
            if not fresh:
                todo = with_known_seeds(todo, self.store, here, self.machine.memory_cap)
            if reuse:
                todo = [_with_earlier(planned, self.store) for planned in todo]
            for planned in todo:
                if fresh and planned.feature_cache is not None and planned.reusable is None:
                    shutil.rmtree(planned.feature_cache, ignore_errors=True)
            with closing(self._ended([p for p in todo if MAX_BATCH not in p.case.evaluation], self._request())) as ended:
                self._keep(ended, measured)
            self._keep(self._searched([p for p in todo if MAX_BATCH in p.case.evaluation]), measured)
        return measured

    def make_share(self, part: tuple[int, int]) -> list[Outcome]:
        """Generate one share of the quality images of every case that is not stored; return failed outcomes."""
        _, cases = self._decided(self.cases)
        to_share = [p for p in self._with_caches(cases) if not p.unsupported_reason and p.case.measures(QUALITY_PASS)]
        self._left = TimeLeft()  # the time of a part of a pass is unknown
        self.watcher.planned(to_share, self._left)
        failed = []
        with closing(self._ended(to_share, replace(self._request(Task.FEATURES), share=part))) as ended:
            for finished in ended:
                self.watcher.ended(finished.outcome)
                if not finished.outcome.facts.share:
                    failed.append(finished.outcome)
        return failed

    def _decided(self, cases: Sequence[Planned], fresh: bool = False) -> tuple[Environment, list[Prepared]]:
        here = self.executor.environment(self.machine.device, self.machine.threads)
        here = replace(here, facts={**here.facts, PRICE: self.price}) if self.price else here
        return here, decide(cases, self.store, here, fresh=fresh, memory_cap=self.machine.memory_cap)

    def _request(self, task: Task = Task.CASE) -> TrialRequest:
        return TrialRequest(self.plan.timeout, self.machine.threads, self.plugins, task, memory_cap=self.machine.memory_cap)

    @contextmanager
    def _new_run(self, here: Environment, cases: list[Prepared]) -> Iterator[Measured]:
        """Start a run in the store, with stored outcomes linked to it, and finish it at the end of the block."""
        new = [planned for planned in cases if not planned.stored]
        self._process_bias = shown_process_bias(self.store, here.machine_class) if new else None
        files = {file: loading.read(file).digest for file in self.plugins}
        stored_plan = self.plan.stored() | ({PLUGIN_FILES: files} if files else {})
        with self.store.new_run(self.plan.name, stored_plan, here, code_identity()) as run_id:
            seconds = partial(self.store.seconds, machine_class=here.machine_class)
            self._left = TimeLeft(new, seconds)
            self.watcher.planned(cases, self._left)
            stored = [planned.result_key for planned in cases if planned.stored]
            for key in stored:
                self.store.reuse(run_id, key)
            yield Measured(run_id, self.plan, self.plugins, self.machine, reused=len(stored))

    def _with_caches(self, cases: list[Prepared]) -> list[Prepared]:
        """Return the cases that are not stored, each with folders for finished parts of its quality pass.

        A folder is named by the result key, so that other processes find the same parts.
        """
        folder = self.store.artifacts.parts
        full = {p.case.cell: folder / p.result_key for p in cases if p.case.role == "baseline"}
        return [replace(p, feature_cache=folder / p.result_key, full_features=full.get(p.case.cell),
                        sample_batch=self._sample_batch(p.case)) for p in cases if not p.stored]

    def _sample_batch(self, case: Case) -> tuple[str, str]:
        """Return plan and file of a case's sample batch, both empty without one."""
        if not self.samples or not case.measures(QUALITY_PASS) or case.role not in ("baseline", "candidate"):
            return "", ""
        return self.plan.name, str(Path(self.samples).resolve() / f"{slug(case.title)}-{case.key[:8]}.npz")

    def _ended(self, todo: list[Prepared], request: TrialRequest) -> Generator[Finished, None, None]:
        """Yield every case as it ends. Closing it ends the workers."""
        planned = {each.case.key: each for each in todo}
        order = breadth_first if self.deadline else groups
        admit = self.deadline.admit if self.deadline else always
        for finished in self.executor.run(order([*planned.values()], self.plan.trial), request, self._started, admit, self._advanced):
            if self.deadline:
                self.deadline.ended(planned[finished.outcome.case.key], finished.outcome)
            yield finished

    def _started(self, planned: Prepared) -> None:
        self._left.started(planned)
        self.watcher.started(planned.case)

    def _advanced(self, planned: Prepared, images: int) -> None:
        self._left.advanced(planned, images)
        self.watcher.advanced(planned.case)

    def _searched(self, todo: list[Prepared]) -> Iterator[Finished]:
        """Yield the outcome of each search for the largest batch."""
        for planned in todo:
            self.watcher.started(planned.case)
            if planned.unsupported_reason:
                yield unmeasured(planned, Status.UNSUPPORTED, planned.unsupported_reason)
            else:
                largest = search.bisect(planned.case.batch, partial(self._attempt, planned), search.MOST)
                yield Finished(search.outcome(planned, largest), {})

    def _attempt(self, planned: Prepared, batch: int) -> Outcome:
        """Measure one batch, unless it cannot end before the deadline."""
        probe = search.at(planned, batch)
        if late := self.deadline.admit(probe, running=True) if self.deadline else "":
            return unmeasured(probe, Status.NOT_REACHED, late).outcome
        (finished,) = self.executor.run([[probe]], self._request(Task.PROBE), lambda planned: None)
        if self.deadline:
            self.deadline.ended(probe, finished.outcome)
        return finished.outcome

    def _keep(self, ended: Iterator[Finished], measured: Measured) -> None:
        """Store each outcome as it arrives."""
        for finished in ended:
            outcome = finished.outcome
            if outcome.ok and self._process_bias:
                outcome = replace(outcome, facts=replace(outcome.facts, process_bias=self._process_bias))
            trial = self._processes.setdefault(finished.process, str(len(self._processes) + 1)) if finished.process else ""
            self.store.save(measured.run_id, outcome, finished.artifacts, trial=trial)
            measured.ran.append(outcome)
            self._left.ended(outcome)
            self.watcher.ended(outcome)


def _rated(
    here: Environment, cases: list[Prepared], rates: Callable[[Iterable[str]], Mapping[str, Rates]]
) -> tuple[Environment, list[Prepared]]:
    """Add the device's rates by dtype to the environment and to the cases to run."""
    dtypes = {planned.case.dtype for planned in cases if not planned.stored}
    if not dtypes:
        return here, cases
    by_dtype = rates(dtypes)
    rated = [planned if planned.stored else replace(planned, rates=by_dtype.get(planned.case.dtype)) for planned in cases]
    rate_facts = {dtype: {"bandwidth": rate.bandwidth, "peak_flops": rate.peak_flops} for dtype, rate in by_dtype.items()}
    return replace(here, facts={**here.facts, "rates": rate_facts}), rated


def _with_earlier(planned: Prepared, store: Store) -> Prepared:
    """Add the quality values of the newest successful outcome of the case, if it has a quality pass."""
    if planned.unsupported_reason or not planned.case.measures(QUALITY_PASS):
        return planned
    return replace(planned, reusable=Earlier.from_outcome(store.latest_for_case(planned.case.key, ok=True), planned.result_parts))
