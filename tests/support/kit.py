"""The kit's checks on the smallest cell, where a test needs a sample of them."""

from __future__ import annotations

from cachemark.core.errors import Unsupported
from cachemark.kit.method_kit import FAMILIES
from cachemark.methods.registry import METHODS


def passes_at_the_smallest_size(name: str) -> None:
    """Assert that the checks which a next-token method of this name can have find nothing, and that these are most of them."""
    family, made = FAMILIES["next-token"], 0
    cell = family.smaller(family.cells(METHODS.get(name), ())[0])[0]
    for check in family.checks:
        try:
            assert not list(check(cell)), check.__name__
            made += 1
        except Unsupported:
            continue
    assert made > len(family.checks) // 2
