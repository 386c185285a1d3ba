"""Who is compared with whom: two cases, two commits or two environments become two sides that can be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..measure.isolate import Options
    from ..measure.pairs import Side
    from ..measure.plan import Plan
    from ..result import Environment


@dataclass(frozen=True)
class Contest:
    """What to compare: a plan, one way to name two arms, the cells (none: all), and how they are run."""

    plan: Plan
    device: str
    options: Options
    images: int
    arms: tuple[str, str] | None = None
    commits: tuple[str, str] | None = None
    environments: tuple[str, str] | None = None
    cases: tuple[str, ...] = ()
    repository: Path | None = None


@dataclass(frozen=True)
class Contestants:
    """Both sides, what they share (see :func:`cachemark.regress.contest.verdicts`), and where and by which code each runs."""

    before: Side
    after: Side
    alike: str
    where: tuple[Environment, Environment]
    code: tuple[dict[str, Any], dict[str, Any]]

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
        from ..measure.checkouts import checkouts, repository_of

        with checkouts(repository_of(wanted.repository), wanted.commits) as folders:
            yield _of_commits(wanted, wanted.commits, folders)
    else:
        yield _of_environments(wanted, wanted.environments) if wanted.environments else _of_arms(wanted, given[0])


def _of_arms(wanted: Contest, labels: tuple[str, str]) -> Contestants:
    from ..measure.pairs import Side, arms_of
    from ..regress.contest import OTHER_METHODS

    before, after = arms_of(wanted.plan, wanted.device, labels, wanted.images)
    return _asked(wanted, Side(labels[0], before, wanted.options), Side(labels[1], after, wanted.options), OTHER_METHODS)


def _of_commits(wanted: Contest, names: Sequence[str], folders: Sequence[Path]) -> Contestants:
    from ..measure.checkouts import code_of
    from ..regress.contest import SAME

    before, after = (wanted.options._replace(code=code_of(folder)) for folder in folders)
    return _of_cells(wanted, names, (before, after), SAME)


def _of_environments(wanted: Contest, pythons: Sequence[str]) -> Contestants:
    from ..measure.environment import PACKAGE
    from ..regress.contest import OTHER_NUMERICS

    code = str(PACKAGE.parent)
    before, after = (wanted.options._replace(python=python, code=code) for python in pythons)
    return _of_cells(wanted, pythons, (before, after), OTHER_NUMERICS)


def _of_cells(wanted: Contest, names: Sequence[str], options: tuple[Options, Options], alike: str) -> Contestants:
    from ..measure.pairs import Side, cells_of

    cells = cells_of(wanted.plan, wanted.device, wanted.cases, wanted.images)
    return _asked(wanted, Side(names[0], cells, options[0]), Side(names[1], cells, options[1]), alike)


def _asked(wanted: Contest, before: Side, after: Side, alike: str) -> Contestants:
    """With the environments that the arms themselves report. Equal fingerprints make two environments one."""
    from ..measure.pairs import asked

    one = asked(before.options, wanted.device)
    two = one if after.options == before.options else asked(after.options, wanted.device)
    if alike == "numerics" and one[0].fingerprint == two[0].fingerprint:
        alike = "same"
    return Contestants(before, after, alike, (one[0], two[0]), (one[1], two[1]))
