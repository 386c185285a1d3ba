"""Pairs of measurements: two fresh processes on one device, in random order, with the same seeds.

The test is in :mod:`cachemark.stats.paired_test`. A process runs its side of several configurations. On a CPU, the processes alternate
after each generation. Both sides run on a leased, monitored device; disturbed pairs are repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..analysis.report_row import names_of
from ..core import seeds
from ..core.errors import BadPlan, CachemarkError, Infrastructure, NothingMeasured, unknown
from ..core.result import DISTURBED, Outcome
from ..core.spec import MAX_BATCH, QUALITY_PASS, shown_label
from ..gate.comparison import PairOfOutcomes
from ..plans.expand import expand
from ..plans.planned import Planned, Prepared
from ..plans.schema import Plan
from ..trial.executors.local import REDOS, Executor
from ..trial.request import TrialRequest

IMAGES, WARMUP = 8, 2  # counted generations of a side, and warm-ups
ONLY = "only"  # key of a side's evaluation: the measured quantity
Configs = Mapping[str, Prepared]
MakeSide = Callable[[Planned, int], Prepared]


def timed_side(planned: Planned, images: int = IMAGES) -> Prepared:
    """Return the case as one side of a pair: ``images`` generations of one batch, without a quality pass."""
    case = replace(planned.case, warmup=WARMUP, repeats=images, samples=planned.case.batch, evaluation={})
    return Prepared.of(planned, case=case)


def image_side(planned: Planned, samples: int = 0) -> Prepared:
    """Return the case with ``samples`` images (0: as many as its plan has) and no timing.

    More images than the plan has come from a larger subset that starts with the same seeds. The evaluation is marked, so that the result is
    not reused for the plan's own case. Raises BadPlan if the series has fewer seeds.
    """
    case, series = planned.case, seeds.series_of(planned.case.seeds)
    sizes = {size: name for name, size in seeds.SIZES.items() if seeds.series_of(name) == series and size >= seeds.SIZES[case.seeds]}
    if samples > max(sizes):
        raise BadPlan(f"{samples} images at the seeds of {case.seeds!r} were requested; its series has {max(sizes)}.",
                      remedy=f"Use {max(sizes)} or fewer, or name seeds of the measuring series under [fidelity], such as \"s256\".")
    evaluation = {key: value for key, value in case.evaluation.items() if key != QUALITY_PASS} | {ONLY: "images"}
    subset = next(name for size, name in sizes.items() if size >= samples)
    case = replace(case, evaluation=evaluation, seeds=subset, samples=samples or case.samples)
    return Prepared.of(planned, case=case)


def configs_of(
    plan: Plan, device: str, labels: Sequence[str] = (), images: int = IMAGES, side: MakeSide = timed_side,
) -> dict[str, Prepared]:
    """Return the cases of a plan that can run, by their names of :func:`names_of`.

    ``labels`` selects cases; ``side`` prepares each (:func:`timed_side` or :func:`image_side`) with ``images``. Cases with a searched batch
    are left out. Raises NothingMeasured without other cases.
    """
    labels = [shown_label(label) for label in labels]
    runnable = [p for p in expand(plan, device) if p.case.role in ("candidate", "baseline") and not p.unsupported_reason]
    fixed = [p for p in runnable if MAX_BATCH not in p.case.evaluation]
    if runnable and not fixed:
        raise NothingMeasured(f"Plan {plan.name} only searches the largest batch, which is not compared.",
                              remedy='Set a batch in one of its blocks, such as: batch = 8')
    cases = dict(zip(names_of([p.case for p in fixed]), fixed, strict=True))
    labels_of = {name: {title.removeprefix(start) for start in ("", f"{p.case.model} ")
                        for title in (name, p.case.title, p.case.full_title)}
                 for name, p in cases.items()}
    for label in labels:
        if not any(label in own for own in labels_of.values()):
            raise unknown("case", label, [label for own in labels_of.values() for label in own])
    return {name: side(planned, images) for name, planned in cases.items() if not labels or labels_of[name] & set(labels)}


def sides_of(
    plan: Plan, device: str, labels: tuple[str, str], images: int = IMAGES, side: MakeSide = timed_side,
) -> tuple[dict[str, Prepared], dict[str, Prepared]]:
    """Return the cases of two labels, paired by model and conditions.

    A model with one case of each label under different conditions gives that pair, which the comparison may reject. Raises CachemarkError
    if no model has both labels.
    """
    labels = shown_label(labels[0]), shown_label(labels[1])
    first, second = (configs_of(plan, device, [label], images, side) for label in labels)
    before, after = dict[str, Prepared](), dict[str, Prepared]()
    for config, planned in first.items():
        ours, theirs = ([p for p in each.values() if p.case.model == planned.case.model] for each in (first, second))
        same = [p for p in theirs if p.case.cell == planned.case.cell] or (theirs if len(ours) == len(theirs) == 1 else [])
        if same:
            name = f"{planned.case.model} {labels[0]} → {labels[1]}{config.removeprefix(planned.case.title)}"
            before[name], after[name] = planned, same[0]
    if not before:
        raise CachemarkError(f"No model of plan {plan.name} has both {labels[0]!r} and {labels[1]!r}.",
                             remedy="Name two cases of one model; see them with: cachemark explain PLAN")
    return before, after


@dataclass(frozen=True)
class Side:
    """One side of every configuration, by name.

    ``request`` holds the interpreter and the copy of the code.
    """

    name: str
    configs: Configs
    request: TrialRequest


def _groups(sides: Sequence[Side], names: Sequence[str]) -> list[list[str]]:
    """Group the configurations that share a process on every side: same model, request and plug-ins."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        configs = [side.configs[name] for side in sides]
        groups.setdefault(tuple((config.case.model, config.request, config.needs) for config in configs), []).append(name)
    return list(groups.values())


def measure(sides: Sequence[Side], names: Sequence[str], executor: Executor) -> list[dict[str, Outcome]]:
    """Measure configurations of all sides in turn on one device. Raises Infrastructure if it is lost."""
    outcomes: list[dict[str, Outcome]] = [{} for _ in sides]
    for group in _groups(sides, names):
        ended = executor.in_turn([([side.configs[name] for name in group], side.request) for side in sides])
        if lost_case := next((finished for part in ended for finished in part if finished.lost), None):
            raise Infrastructure(f"The comparison ends with its device. {lost_case.outcome.log.strip().splitlines()[0]}",
                                 remedy="See `cachemark doctor`; the pairs measured so far are stored.")
        for of_side, part in zip(outcomes, ended, strict=True):
            of_side |= {name: finished.outcome for name, finished in zip(group, part, strict=True)}
    return outcomes


@dataclass
class PairRunner:
    """Measures pairs of two sides.

    Half of the pairs, chosen by ``seed``, run the second side first; ``on_pair`` receives each pair.
    """

    before: Side
    after: Side
    executor: Executor
    seed: int = 0
    on_pair: Callable[[PairOfOutcomes], None] | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._orders = orders(self.seed)

    def round(self, names: Sequence[str]) -> list[PairOfOutcomes]:
        """Measure one more pair of each of these configurations, again where the machine disturbed it."""
        pending, done, redone = list(names), list[PairOfOutcomes](), 0
        while pending:
            pairs = self._round(pending, redone)
            disturbed = [pair.config for pair in pairs if any(side.status in DISTURBED for side in pair.sides)]
            pending = disturbed if redone < REDOS else []
            done += [pair for pair in pairs if pair.config not in pending]
            redone += 1
        for pair in done:
            self._counts[pair.config] = pair.number
            if self.on_pair is not None:
                self.on_pair(pair)
        return done

    def _round(self, names: list[str], redone: int) -> list[PairOfOutcomes]:
        swapped = next(self._orders)
        first, second = (self.after, self.before) if swapped else (self.before, self.after)
        outcomes = measure([first, second], names, self.executor)
        before, after = reversed(outcomes) if swapped else outcomes
        return [PairOfOutcomes(n, before[n], after[n], self._counts.get(n, 0) + 1, swapped, redone) for n in names]


def orders(seed: int) -> Iterator[bool]:
    """Yield for each pair whether the second side runs first: once in every two pairs, in random order."""
    chance = random.Random(seed)
    while True:
        first = chance.random() < 0.5
        yield from (first, not first)
