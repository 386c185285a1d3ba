"""Who is compared with whom: two cases, two commits or two environments become two sides that can be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..core.result import Environment
    from ..plan.schema import Plan
    from ..trial.request import TrialRequest
    from .pairs import Cells, Side


@dataclass(frozen=True)
class Contest:
    """What to compare: a plan, one way to name two arms, the cells (none: all), and how they are run. ``samples``: at how many seeds
    images are compared where tokens differ (None: as many as the plan says; 0: nowhere)."""

    plan: Plan
    device: str
    request: TrialRequest
    images: int
    arms: tuple[str, str] | None = None
    commits: tuple[str, str] | None = None
    environments: tuple[str, str] | None = None
    cases: tuple[str, ...] = ()
    repository: Path | None = None
    samples: int | None = None


@dataclass(frozen=True)
class Contestants:
    """Both sides, what they share (see :func:`cachemark.gate.comparison.verdicts`), and where and by which code each runs. ``seen``: both
    sides once more, to judge images; nothing where they are not asked."""

    before: Side
    after: Side
    alike: str
    where: tuple[Environment, Environment]
    code: tuple[dict[str, Any], dict[str, Any]]
    seen: tuple[Side, Side] | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.before.name, self.after.name


@contextmanager
def contestants(wanted: Contest) -> Iterator[Contestants]:
    """The two sides, as long as the block lasts. Raises what cannot be compared before anything is measured."""
    given = [way for way in (wanted.arms, wanted.commits, wanted.environments) if way]
    if len(given) != 1:
        raise click.UsageError("Name two arms in one way: --arms A B, --commits A B or --env OLD NEW.")
    if wanted.commits:
        from .checkouts import checkouts, repository_of

        with checkouts(repository_of(wanted.repository), wanted.commits) as folders:
            yield _of_commits(wanted, wanted.commits, folders)
    else:
        yield _of_environments(wanted, wanted.environments) if wanted.environments else _of_arms(wanted, given[0])


def _of_arms(wanted: Contest, labels: tuple[str, str]) -> Contestants:
    from ..gate.comparison import OTHER_METHODS
    from .pairs import arms_of, seen

    cells = arms_of(wanted.plan, wanted.device, labels, wanted.images)
    images = None if wanted.samples == 0 else arms_of(wanted.plan, wanted.device, labels, wanted.samples or 0, seen)
    return _asked(wanted, labels, (wanted.request, wanted.request), cells, images, OTHER_METHODS)


def _of_commits(wanted: Contest, names: Sequence[str], folders: Sequence[Path]) -> Contestants:
    from ..gate.comparison import SAME
    from .checkouts import code_of

    before, after = (replace(wanted.request, code=code_of(folder)) for folder in folders)
    return _of_cells(wanted, names, (before, after), SAME)


def _of_environments(wanted: Contest, pythons: Sequence[str]) -> Contestants:
    from ..gate.comparison import OTHER_NUMERICS
    from ..machine.environment import PACKAGE

    code = str(PACKAGE.parent)
    before, after = (replace(wanted.request, python=python, code=code) for python in pythons)
    return _of_cells(wanted, pythons, (before, after), OTHER_NUMERICS)


def _of_cells(wanted: Contest, names: Sequence[str], requests: tuple[TrialRequest, TrialRequest], alike: str) -> Contestants:
    from .pairs import cells_of, seen

    cells = cells_of(wanted.plan, wanted.device, wanted.cases, wanted.images)
    images = None if wanted.samples == 0 else cells_of(wanted.plan, wanted.device, wanted.cases, wanted.samples or 0, seen)
    return _asked(wanted, names, requests, (cells, cells), None if images is None else (images, images), alike)


def _asked(
    wanted: Contest, names: Sequence[str], requests: tuple[TrialRequest, TrialRequest], cells: tuple[Cells, Cells],
    images: tuple[Cells, Cells] | None, alike: str,
) -> Contestants:
    """With the environments that the arms themselves report. Equal fingerprints make two environments one. What is known to make a
    comparison unfair is refused here, before the first pair."""
    from ..gate.comparison import OTHER_NUMERICS, SAME, refuse_unequal
    from ..trial.identity import identify
    from ..trial.request import Task
    from .pairs import Side

    one = identify(requests[0], wanted.device)
    two = one if requests[1] == requests[0] else identify(requests[1], wanted.device)
    where = (one[0], two[0])
    for name, planned in cells[0].items():
        refuse_unequal(planned.case, cells[1][name].case, where)
    if alike == OTHER_NUMERICS and one[0].fingerprint == two[0].fingerprint:
        alike = SAME
    before, after = (Side(names[n], cells[n], requests[n]) for n in (0, 1))
    judged = [Side(names[n], images[n], replace(requests[n], task=Task.IMAGES)) for n in (0, 1)] if images else []
    return Contestants(before, after, alike, where, (one[1], two[1]), (judged[0], judged[1]) if judged else None)
