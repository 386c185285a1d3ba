"""A plug-in of pytest: ``pytest --cachemark-method knorm.py`` makes each check of the kit a test.

It is imported by every run of pytest where the package is installed, so that it imports nothing else before it is asked for something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..kit.findings import Checked


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("cachemark")
    for kind in OFFERED:
        group.addoption(f"--cachemark-{kind}", action="append", default=[], metavar="NAME|FILE",
                        help=f"Hold this {kind} to the checks that cachemark's own are held to; repeatable.")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each check of what the options name."""
    for kind, tests in OFFERED.items():
        for named in config.getoption(f"--cachemark-{kind}"):
            items.extend(CheckItem.from_parent(session, name=title, check=check) for title, check in tests(named))


def _of_methods(named: str) -> Iterator[tuple[str, Callable[[], Checked]]]:
    from ..kit.method_kit import family_of, made_of
    from ..methods.registry import METHODS
    from .prove import names_of

    for name in names_of("methods", named):
        cls = METHODS.get(name)
        for paradigm in cls.paradigms:
            family = family_of(cls, paradigm)
            for check in family.checks if family else ():
                yield f"{name}::{paradigm}::{check.__name__}", partial(made_of, check, cls, paradigm)


def _of_models(named: str) -> Iterator[tuple[str, Callable[[], Checked]]]:
    from ..kit.method_kit import made_of_one
    from ..kit.model_checks import MODEL, ModelExample
    from ..models.registry import MODELS
    from .prove import names_of

    for name in names_of("models", named):
        example = ModelExample(MODELS.get(name))
        yield from ((f"{name}::{check.__name__}", partial(made_of_one, check, example)) for check in MODEL)


def _of_metrics(named: str) -> Iterator[tuple[str, Callable[[], Checked]]]:
    from ..kit.method_kit import made_of_one
    from ..kit.metric_checks import METRIC, metric_example
    from .prove import names_of

    for name in names_of("metrics", named):
        example = metric_example(name)
        yield from ((f"{name}::{check.__name__}", partial(made_of_one, check, example)) for check in METRIC)


OFFERED = {"method": _of_methods, "model": _of_models, "metric": _of_metrics}


class CheckFailed(Exception):
    """A check found something, in words."""


class CheckItem(pytest.Item):
    """One check of the kit as a test."""

    def __init__(self, *, check: Callable[[], Checked], **given: Any) -> None:
        super().__init__(**given)
        self._check = check

    def runtest(self) -> None:
        """Make the check; one that could not be made is skipped."""
        made = self._check()
        if made.left_out:
            pytest.skip(made.left_out)
        if made.findings:
            found = "\n".join(f"at {one.place}:\nexpected {one.expected}; found {one.found}" for one in made.findings)
            raise CheckFailed(f"asks: {made.asks}\n{found}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The words of a finding, without the traceback of the kit."""
        return str(excinfo.value) if isinstance(excinfo.value, CheckFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The line above a failure."""
        return self.path, None, self.name
