"""Pairs of measurements: two fresh processes on one device, in random order, with the same seeds.

The test is in :mod:`cachemark.stats.paired_test`. A process runs its side of several configurations. Both sides run on a leased, monitored
device; disturbed pairs are repeated.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core import seeds
from ..core.errors import BadPlan, CachemarkError, Infrastructure, NothingMeasured, unknown
from ..core.result import DISTURBED, Outcome
from ..core.spec import MAX_BATCH, QUALITY_PASS, Case, shown_label
from ..gate.comparison import PairOfOutcomes
from ..plans.expand import Planned, expand
from ..plans.schema import Plan
from ..trial.executors.local import REDOS, Executor
from ..trial.request import TrialRequest

IMAGES, WARMUP = 8, 2  # counted generations of a side, and those before them
ONLY = "only"  # key of a side's evaluation: the one thing that is measured
Configs = Mapping[str, Planned]
MakeSide = Callable[[Planned, int], Planned]


def timed_side(planned: Planned, images: int = IMAGES) -> Planned:
    """Return the case as one side of a pair: ``images`` generations of one batch, and no pass over images."""
    case = replace(planned.case, warmup=WARMUP, repeats=images, samples=planned.case.batch, evaluation={})
    return replace(planned, case=case, feature_cache=None, full_features=None)


def image_side(planned: Planned, samples: int = 0) -> Planned:
    """Return the case with ``samples`` images (0: as many as its plan has) and no timing.

    More images than the plan has come from a larger subset that starts with the same seeds. The evaluation is marked, so that the result is
    not reused for the plan's own case. Raises BadPlan if the series has fewer seeds.
    """
    case = planned.case
    evaluation = {key: value for key, value in case.evaluation.items() if key != QUALITY_PASS} | {ONLY: "images"}
    case = replace(case, evaluation=evaluation, seeds=_reaching(case.seeds, samples), samples=samples or case.samples)
    return replace(planned, case=case, feature_cache=None, full_features=None)


def _reaching(subset: str, samples: int) -> str:
    series = {name: size for name, size in seeds.SIZES.items() if _series(name) == _series(subset) and size >= seeds.SIZES[subset]}
    if large_enough := next((name for name, size in series.items() if size >= samples), None):
        return large_enough
    most = max(series.values())
    raise BadPlan(f"{samples} images at the seeds of {subset!r} were requested; its series has {most}.",
                  remedy=f"Use {most} or fewer, or name seeds of the measuring series under [fidelity], such as \"s256\".")


def _series(subset: str) -> str:
    return subset.rstrip(f"{string.digits}k")


def configs_of(
    plan: Plan, device: str, labels: Sequence[str] = (), images: int = IMAGES, side: MakeSide = timed_side,
) -> dict[str, Planned]:
    """Return the cases of a plan that can run, by their names of :func:`names_of`.

    ``labels`` selects cases; ``side`` prepares each (:func:`timed_side` or :func:`image_side`) with ``images``. Cases with a searched batch
    are left out. Raises NothingMeasured without other cases.
    """
    labels = [shown_label(label) for label in labels]
    runnable = [p for p in expand(plan, device) if p.case.role in ("candidate", "baseline") and not p.unsupported_reason]
    fixed = [p for p in runnable if MAX_BATCH not in p.case.evaluation]
    if runnable and not fixed:
        raise NothingMeasured(f"Plan {plan.name} asks for nothing but the largest batch, which is searched for and not compared.",
                              remedy='Set a batch in one of its blocks, such as: batch = 8')
    cases = dict(zip(names_of([p.case for p in fixed]), fixed, strict=True))
    labels_of = {name: _labels(name, planned.case) for name, planned in cases.items()}
    for label in labels:
        if not any(label in own for own in labels_of.values()):
            raise unknown("case", label, [label for own in labels_of.values() for label in own])
    return {name: side(planned, images) for name, planned in cases.items() if not labels or labels_of[name] & set(labels)}


def _labels(name: str, case: Case) -> set[str]:
    return {title.removeprefix(start) for title in (name, case.title, case.full_title) for start in ("", f"{case.model} ")}


def names_of(cases: Sequence[Case]) -> list[str]:
    """Name each case by model and label, and where several share these, by the conditions that differ, such as ``, batch 8``."""
    conditions = [_conditions(case) for case in cases]
    namesakes: dict[str, list[dict[str, Any]]] = {}
    for case, own in zip(cases, conditions, strict=True):
        namesakes.setdefault(case.title, []).append(own)
    return [", ".join([case.title, *_apart(own, namesakes[case.title])]) for case, own in zip(cases, conditions, strict=True)]


def _apart(conditions: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{name} {value}" for name, value in conditions.items() if any(other.get(name) != value for other in alternatives)]


def _conditions(case: Case) -> dict[str, Any]:
    settings = case.to_json()
    return {name: value for name, value in {**settings, **settings["sampling"], **settings["parameters"]}.items()
            if name not in ("sampling", "parameters", "evaluation", "role", "decoder")}


def sides_of(
    plan: Plan, device: str, labels: tuple[str, str], images: int = IMAGES, side: MakeSide = timed_side,
) -> tuple[dict[str, Planned], dict[str, Planned]]:
    """Return the cases of two labels, paired by model and conditions.

    A model with one case of each label under different conditions gives that pair, which the comparison may reject. Raises CachemarkError
    if no model has both labels.
    """
    labels = shown_label(labels[0]), shown_label(labels[1])
    sides = [configs_of(plan, device, [label], images, side) for label in labels]
    pairs = {_pair_name(name, p.case, labels): (p, other) for name, p in sides[0].items() if (other := _counterpart(p, sides))}
    if not pairs:
        raise CachemarkError(f"No model of plan {plan.name} has both {labels[0]!r} and {labels[1]!r}.",
                             remedy="Name two cases of one model; see them with: cachemark explain PLAN")
    before, after = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
    return before, after


def _counterpart(planned: Planned, sides: Sequence[Configs]) -> Planned | None:
    ours, theirs = ([p for p in side.values() if p.case.model == planned.case.model] for side in sides)
    same = [p for p in theirs if p.case.cell == planned.case.cell]
    return same[0] if same else theirs[0] if len(ours) == len(theirs) == 1 else None


def _pair_name(name: str, case: Case, labels: tuple[str, str]) -> str:
    conditions = name.removeprefix(case.title)
    return f"{case.model} {labels[0]} → {labels[1]}{conditions}"


@dataclass(frozen=True)
class Side:
    """One side of every configuration, by name; ``request`` holds the interpreter and the copy of the code that run it."""

    name: str
    configs: Configs
    request: TrialRequest

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Group the configurations that share a process: one model, one request, the same plug-ins."""
        groups: dict[Any, list[str]] = {}
        for name in names:
            config = self.configs[name]
            groups.setdefault((config.case.model, config.request, config.needs), []).append(name)
        return list(groups.values())


def measure(sides: Sequence[Side], names: Sequence[str], executor: Executor) -> list[dict[str, Outcome]]:
    """Measure configurations of each side in turn on one device. Raises Infrastructure if it is lost."""
    groups = [(number, group) for number, side in enumerate(sides) for group in side.groups(names)]
    ended = executor.in_turn([([sides[number].configs[name] for name in group], sides[number].request) for number, group in groups])
    if lost_case := next((finished for part in ended for finished in part if finished.lost), None):
        raise Infrastructure(f"The comparison ends with its device. {lost_case.outcome.log.strip().splitlines()[0]}",
                             remedy="See `cachemark doctor`; the pairs measured so far are stored.")
    outcomes: list[dict[str, Outcome]] = [{} for _ in sides]
    for (number, group), part in zip(groups, ended, strict=True):
        outcomes[number] |= {name: finished.outcome for name, finished in zip(group, part, strict=True)}
    return outcomes


@dataclass(frozen=True)
class Pair(PairOfOutcomes):
    """One pair of one configuration. ``swapped``: the second side ran first; ``redone``: number of repetitions."""

    number: int
    swapped: bool
    redone: int

    @property
    def disturbed(self) -> bool:
        """Return whether the machine, and not one side, invalidated the pair."""
        return self.before.status in DISTURBED or self.after.status in DISTURBED


@dataclass
class PairRunner:
    """Measures pairs of two sides. Half of the pairs, chosen by ``seed``, run the second side first; ``on_pair`` receives each pair."""

    before: Side
    after: Side
    executor: Executor
    seed: int = 0
    on_pair: Callable[[Pair], None] | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._orders = orders(self.seed)

    def round(self, names: Sequence[str]) -> list[Pair]:
        """Measure one more pair of each of these configurations, again where the machine disturbed it."""
        pending, done, redone = list(names), list[Pair](), 0
        while pending:
            pairs = self._round(pending, redone)
            pending = [pair.config for pair in pairs if pair.disturbed and redone < REDOS]
            done += [pair for pair in pairs if pair.config not in pending]
            redone += 1
        for pair in done:
            self._counts[pair.config] = pair.number
            if self.on_pair is not None:
                self.on_pair(pair)
        return done

    def _round(self, names: list[str], redone: int) -> list[Pair]:
        swapped = next(self._orders)
        first, second = (self.after, self.before) if swapped else (self.before, self.after)
        outcomes = measure([first, second], names, self.executor)
        before, after = reversed(outcomes) if swapped else outcomes
        return [Pair(n, before[n], after[n], self._counts.get(n, 0) + 1, swapped, redone) for n in names]


def orders(seed: int) -> Iterator[bool]:
    """Yield for each pair whether the second side runs first: once in every two pairs, in random order."""
    chance = random.Random(seed)
    while True:
        first = chance.random() < 0.5
        yield from (first, not first)
