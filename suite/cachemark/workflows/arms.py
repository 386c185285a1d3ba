"""Arms of a comparison: cases of a plan as they are timed, or as their images are judged, by the names of their cells."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import seeds
from ..core.errors import BadPlan, CachemarkError, NothingMeasured, unknown
from ..core.spec import QUALITY_PASS, Case, shown_label
from ..plans.expand import MAX_BATCH, Planned, expand
from ..plans.schema import Plan

IMAGES, WARMUP = 8, 2  # counted generations of an arm, and those before them
ARM = "arm"  # of an arm's evaluation: what alone is measured of it
Cells = Mapping[str, Planned]
MakeArm = Callable[[Planned, int], Planned]


def timed_arm(planned: Planned, images: int = IMAGES) -> Planned:
    """The case as an arm of a pair: one batch of it, as often as the gate asks, and no pass over images."""
    case = replace(planned.case, warmup=WARMUP, repeats=images, samples=planned.case.batch, evaluation={})
    return replace(planned, case=case, feature_cache=None, full_features=None)


def image_arm(planned: Planned, samples: int = 0) -> Planned:
    """The case as an arm of which so many images (0: as many as its plan compares) are judged and nothing is timed. More than its plan
    has come from a larger subset of the same series, which begins with the same seeds. It says that it is such an arm, since its outcome
    has no times and must not stand for that of the plan's own case. Raises BadPlan where the series has fewer."""
    case = planned.case
    evaluation = {key: value for key, value in case.evaluation.items() if key != QUALITY_PASS} | {ARM: "images"}
    case = replace(case, evaluation=evaluation, seeds=_reaching(case.seeds, samples), samples=samples or case.samples)
    return replace(planned, case=case, feature_cache=None, full_features=None)


def _reaching(subset: str, samples: int) -> str:
    """The subset itself, or the first larger one of its series that has so many: what is tuned on never becomes what is measured on."""
    series = {name: size for name, size in seeds.SIZES.items() if _series(name) == _series(subset) and size >= seeds.SIZES[subset]}
    if found := next((name for name, size in series.items() if size >= samples), None):
        return found
    most = max(series.values())
    raise BadPlan(f"{samples} images at the seeds of {subset!r} were asked for; its series has {most}.",
                  remedy=f"Ask for {most} or fewer, or name seeds of the measuring series under [fidelity], such as \"s256\".")


def _series(subset: str) -> str:
    return subset.rstrip(f"{string.digits}k")


def cells_of(
    plan: Plan, device: str, labels: Sequence[str] = (), images: int = IMAGES, arm: MakeArm = timed_arm,
) -> dict[str, Planned]:
    """Timed cases of a plan that can run, by their names of :func:`names_of`; with ``labels`` only those that one of them means: a name,
    the same without its model or its conditions, or with the batch where that is none of them. ``arm`` makes arms of
    them, :func:`timed_arm` or :func:`image_arm`, with so many ``images``. Cases whose largest batch is searched have no batch of their own
    and are left out; raises NothingMeasured where there are no others."""
    labels = [shown_label(label) for label in labels]
    able = [p for p in expand(plan, device) if p.case.role in ("arm", "baseline") and not p.unsupported_reason]
    fixed = [p for p in able if MAX_BATCH not in p.case.evaluation]
    if able and not fixed:
        raise NothingMeasured(f"Plan {plan.name} asks for nothing but the largest batch, which is searched for and not compared.",
                              remedy='Give a block a batch of its own, such as: batch = 8')
    found = dict(zip(names_of([p.case for p in fixed]), fixed, strict=True))
    meant = {name: _meant(name, planned.case) for name, planned in found.items()}
    for label in labels:
        if not any(label in known for known in meant.values()):
            raise unknown("case", label, [known for each in meant.values() for known in each])
    return {name: arm(planned, images) for name, planned in found.items() if not labels or meant[name] & set(labels)}


def _meant(name: str, case: Case) -> set[str]:
    """Every label that means a case."""
    return {known.removeprefix(start) for known in (name, case.title, case.full_title) for start in ("", f"{case.model} ")}


def names_of(cases: Sequence[Case]) -> list[str]:
    """Names of cells: model and label, and where several would have the same, the conditions that tell them apart, such as
    ``, batch 8``."""
    conditions = [_conditions(case) for case in cases]
    namesakes: dict[str, list[dict[str, Any]]] = {}
    for case, own in zip(cases, conditions, strict=True):
        namesakes.setdefault(case.title, []).append(own)
    return [", ".join([case.title, *_apart(own, namesakes[case.title])]) for case, own in zip(cases, conditions, strict=True)]


def _apart(conditions: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """The conditions in which any other case differs."""
    return [f"{name} {value}" for name, value in conditions.items() if any(other.get(name) != value for other in others)]


def _conditions(case: Case) -> dict[str, Any]:
    """Settings of a case one by one, without its evaluation and its role."""
    settings = case.to_json()
    return {name: value for name, value in {**settings, **settings["sampling"], **settings["knobs"]}.items()
            if name not in ("sampling", "knobs", "evaluation", "role", "decoder")}


def arms_of(
    plan: Plan, device: str, labels: tuple[str, str], images: int = IMAGES, arm: MakeArm = timed_arm,
) -> tuple[dict[str, Planned], dict[str, Planned]]:
    """Both arms wherever a model has a case with either label under the same conditions; of a model that has one each under different
    ones these two, which the comparison may refuse. A cell is named by its model and both labels, and by the conditions where there are
    several. Raises CachemarkError where no model has both."""
    labels = shown_label(labels[0]), shown_label(labels[1])
    sides = [cells_of(plan, device, [label], images, arm) for label in labels]
    found = {_both(name, p.case, labels): (p, other) for name, p in sides[0].items() if (other := _counterpart(p, sides))}
    if not found:
        raise CachemarkError(f"No model of plan {plan.name} has both {labels[0]!r} and {labels[1]!r}.",
                             remedy="Name two cases of one model; see them with: cachemark explain PLAN")
    before, after = ({name: pair[side] for name, pair in found.items()} for side in (0, 1))
    return before, after


def _counterpart(planned: Planned, sides: Sequence[Cells]) -> Planned | None:
    """The case of the second arm that one of the first is compared with."""
    ours, theirs = ([p for p in side.values() if p.case.model == planned.case.model] for side in sides)
    same = [p for p in theirs if p.case.cell == planned.case.cell]
    return same[0] if same else theirs[0] if len(ours) == len(theirs) == 1 else None


def _both(name: str, case: Case, labels: tuple[str, str]) -> str:
    """Name of a cell of two labels, after that of the first."""
    which = name.removeprefix(case.title)
    return f"{case.model} {labels[0]} → {labels[1]}{which}"
