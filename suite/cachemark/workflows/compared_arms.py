"""Two arms to compare: two cases, two commits or two environments, each with the code and the environment that it reports of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.result import Environment
from ..gate.comparison import OTHER_METHODS, OTHER_NUMERICS, SAME, refuse_unequal
from ..machine.environment import PACKAGE
from ..plans.schema import Plan
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .arms import Cells, MakeArm, arms_of, cells_of, image_arm, timed_arm
from .commits import checkouts, code_of, repository_of
from .pairs import Arm


@dataclass(frozen=True)
class ComparisonRequest:
    """A plan, one way to name two arms (labels of cases, commits, or interpreters), the cells (none: all), and how they are run.
    ``images``: counted generations of an arm in a pair; ``samples``: number of seeds at which images are compared where tokens differ
    (None: as many as the plan says; 0: nowhere)."""

    plan: Plan
    device: str
    trial: TrialRequest
    images: int
    arms: tuple[str, str] | None = None
    commits: tuple[str, str] | None = None
    environments: tuple[str, str] | None = None
    cases: tuple[str, ...] = ()
    repository: Path | None = None
    samples: int | None = None


@dataclass(frozen=True)
class ComparedArms:
    """Both arms, what they share (see :func:`cachemark.gate.comparison.verdicts`), and where and by which code each runs. ``images``: both
    arms once more, to judge images; None where that is not asked."""

    before: Arm
    after: Arm
    alike: str
    where: tuple[Environment, Environment]
    code: tuple[dict[str, Any], dict[str, Any]]
    images: tuple[Arm, Arm] | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.before.name, self.after.name


@contextmanager
def compared_arms(request: ComparisonRequest, executor: Executor) -> Iterator[ComparedArms]:
    """The two arms, as long as the block lasts. Raises what cannot be compared before anything is measured."""
    if request.commits:
        with checkouts(repository_of(request.repository), request.commits) as folders:
            one, two = (replace(request.trial, code=code_of(folder, name)) for folder, name in zip(folders, request.commits, strict=True))
            yield _identified(request, request.commits, (one, two), SAME, executor)
    elif request.environments:
        one, two = (replace(request.trial, python=python, code=str(PACKAGE.parent)) for python in request.environments)
        yield _identified(request, request.environments, (one, two), OTHER_NUMERICS, executor)
    elif request.arms:
        yield _identified(request, request.arms, (request.trial, request.trial), OTHER_METHODS, executor)


def _cells(request: ComparisonRequest, count: int, arm: MakeArm) -> tuple[Cells, Cells]:
    """Cells of both arms; with cases as arms those of two labels, else the same ones twice."""
    if request.arms:
        return arms_of(request.plan, request.device, request.arms, count, arm)
    cells = cells_of(request.plan, request.device, request.cases, count, arm)
    return cells, cells


def _identified(
    request: ComparisonRequest, names: Sequence[str], trials: tuple[TrialRequest, TrialRequest], alike: str, executor: Executor,
) -> ComparedArms:
    """With the environments that the arms themselves report. Equal fingerprints make two environments one. What is known to make a
    comparison unfair is refused here, before the first pair."""
    cells = _cells(request, request.images, timed_arm)
    images = None if request.samples == 0 else _cells(request, request.samples or 0, image_arm)
    one = executor.identify(trials[0], request.device)
    two = one if trials[1] == trials[0] else executor.identify(trials[1], request.device)
    where = (one[0], two[0])
    for name, planned in cells[0].items():
        refuse_unequal(planned.case, cells[1][name].case, where)
    if alike == OTHER_NUMERICS and one[0].fingerprint == two[0].fingerprint:
        alike = SAME
    before, after = (Arm(names[n], cells[n], trials[n]) for n in (0, 1))
    judging = tuple(Arm(names[n], images[n], replace(trials[n], task=Task.IMAGES)) for n in (0, 1)) if images else ()
    return ComparedArms(before, after, alike, where, (one[1], two[1]), (judging[0], judging[1]) if judging else None)
