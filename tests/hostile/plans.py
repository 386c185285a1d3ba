"""Plans that are broken, huge, nested without end, or name files that are none."""

from __future__ import annotations

from .attack import Attack
from .ground import PLAN, replaced

EXPLAIN = ("run", PLAN, "--plugin", "dot.py", "--explain")


def changed(name: str, old: str, new: str, kind: str, *says: str, slug: str = "bad-plan", code: int = 2) -> Attack:
    """A try with one change in the good plan."""
    return Attack(name, EXPLAIN, (kind,), slug, says, code, replaced(PLAN, old, new))


ROWS = [changed("two repeats", "repeats = 3", "repeats = 2", "plan timing.repeats", "timing.repeats", "greater than or equal to 3")]
