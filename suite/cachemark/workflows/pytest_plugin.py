"""A pytest plug-in: ``pytest --cachemark-method knorm.py`` runs each check of the kit as a test.

Every run of pytest imports this module if the package is installed, so it imports nothing else until an option is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from ..kit.runner import PlannedCheck

KINDS: dict[str, Literal["methods", "models", "metrics"]] = {"method": "methods", "model": "models", "metric": "metrics"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("cachemark")
    for kind in KINDS:
        group.addoption(f"--cachemark-{kind}", action="append", default=[], metavar="NAME|FILE",
                        help=f"Run the checks of cachemark's kit on this {kind}; repeatable.")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each check of the things named by the options."""
    for kind, table in KINDS.items():
        for named in config.getoption(f"--cachemark-{kind}"):
            from .prove import planned_checks

            for name, checks in planned_checks(table, named, {}).items():
                items.extend(CheckItem.from_parent(session, name=f"{name}::{check.name}", check=check) for check in checks)


class CheckFailed(Exception):
    """A failed check, in words."""


class CheckItem(pytest.Item):
    """One check of the kit as a test."""

    def __init__(self, *, check: PlannedCheck, **options: Any) -> None:
        super().__init__(**options)
        self._check = check

    def runtest(self) -> None:
        """Run the check; skip if it could not run."""
        result = self._check.run()
        if result.skipped:
            pytest.skip(result.skipped)
        if result.findings:
            details = "\n".join(f"at {finding.location}:\nexpected {finding.expected}; got {finding.actual}" for finding in result.findings)
            raise CheckFailed(f"{result.requirement}\n{details}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the findings without the kit's traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, CheckFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the heading of a failure."""
        return self.path, None, self.name
