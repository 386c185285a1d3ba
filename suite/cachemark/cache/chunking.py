"""Working through large storage in chunks, so that what is needed on the way stays small."""

from __future__ import annotations

from collections.abc import Iterator

TRANSIENT = 192 * 2**20
"""Bytes that a portion may need on the way. Results come on top of it."""


def chunks(sites: int, rows: int, each: int) -> Iterator[tuple[slice, slice]]:
    """Sites and rows of each portion, where one row of one site needs ``each`` bytes on the way. A portion has all rows of some sites or
    some rows of one site, so that its storage is one stretch."""
    count = max(1, TRANSIENT // each)
    if count >= rows:
        for at in range(0, sites, count // rows):
            yield slice(at, at + count // rows), slice(0, rows)
        return
    for site in range(sites):
        for at in range(0, rows, count):
            yield slice(site, site + 1), slice(at, at + count)
