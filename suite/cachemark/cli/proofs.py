"""Findings of the kit, as the commands that ask it print it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from .options import echo_json

if TYPE_CHECKING:
    from ..kit.findings import Checked, KitProof

FOUND, NOTHING = 1, 4  # exit codes
SHOWN = 3  # findings of a check


def show(proofs: Sequence[KitProof], as_json: bool) -> None:
    """Print what every check found and leave with 0, 1 where one found something, or 4 where none of a thing could be made."""
    from ..core.wording import printed

    if as_json:
        echo_json(proofs)
    else:
        for proof in proofs:
            click.echo("\n".join(printed(line) for line in _lines(proof)))
    if any(check.findings for proof in proofs for check in proof.checks):
        sys.exit(FOUND)
    if not all(proof.complete for proof in proofs):
        sys.exit(NOTHING)


def _lines(proof: KitProof) -> Iterator[str]:
    yield f"{proof.kind} {proof.name}"
    for check in proof.checks:
        yield f"  {_word(check):<8}  {check.name}"
        if check.findings:
            yield f"            asks: {check.asks}"
        for finding in check.findings[:SHOWN]:
            if finding.place:
                yield f"            at {finding.place}:"
            yield f"            expected {finding.expected}; found {finding.found}"
        if len(check.findings) > SHOWN:
            yield f"            and {len(check.findings) - SHOWN} more like that"
        if check.left_out:
            yield f"            {check.left_out}"
    counts = [sum(map(bool, kind)) for kind in zip(*((c.passed, c.findings, c.left_out) for c in proof.checks), strict=True)] or [0, 0, 0]
    yield f"{len(proof.checks)} checks: {counts[0]} passed, {counts[1]} found something, {counts[2]} left out."


def _word(check: Checked) -> str:
    return "FOUND" if check.findings else "left out" if check.left_out else "passed"
