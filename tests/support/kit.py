"""Runs single checks of the kit."""

from cachemark.contract.heads import HeadGroups
from cachemark.core.errors import Unsupported
from cachemark.kit import ragged
from cachemark.kit.findings import KitFinding, KitResult
from cachemark.kit.runner import FAMILIES, GROUPS, findings_of, method_checks
from cachemark.methods.registry import METHODS


def run_check(method: str, check: str, paradigm: str = "next-token") -> KitResult:
    """Run the check of a registered method that has these words as its name."""
    return next(planned for planned in method_checks(METHODS.get(method)) if planned.name == f"{paradigm}: {check}").run()


def faults_on_small_models(name: str, which: slice = slice(None)) -> dict[str, KitFinding]:
    """Return the first finding of each check of a next-token method, or of some, on two layers of two heads, with and without a codec."""
    (checks, cells), faults = FAMILIES["next-token"], dict[str, KitFinding]()
    cls = METHODS.get(name)
    for check in (GROUPS if issubclass(cls, HeadGroups) else checks)[which]:
        for cell in cells(cls, ()):
            try:
                findings = findings_of(check, cell if check.__module__ == ragged.__name__ else cell.smaller[-1])
            except Unsupported:
                continue
            if findings:
                faults.setdefault(check.__name__, findings[0])
    return faults


def passes_at_the_smallest_size(name: str) -> None:
    """Assert that a next-token method passes on the smallest cell, and that most checks apply to it."""
    (checks, cells), count = FAMILIES["next-token"], 0
    cell = cells(METHODS.get(name), ())[0].smaller[0]
    for check in checks:
        try:
            assert not list(check(cell)), check.__name__
            count += 1
        except Unsupported:
            continue
    assert count > len(checks) // 2
