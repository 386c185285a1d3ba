"""One token a pass against several, with and without an evicting cache, over the batches of a model: which is fastest where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import formatting as fmt
from .case_group import CaseGroup
from .recommendation import Regime
from .report_row import ReportRow, faster

TITLE = "several tokens a pass"


def decoder_regimes(parts: Iterable[CaseGroup]) -> tuple[Regime, ...]:
    """One for each model that was measured under a decoder at two batches or more, all else being equal: rows of every decoder, alone and
    beside a method, and of those methods alone."""
    families: dict[str, list[CaseGroup]] = {}
    for part in (part for part in parts if not part.searched):
        families.setdefault(part.but_batch, []).append(part)
    found = (_regime(groups) for groups in families.values() if len({part.case.batch for part in groups}) > 1)
    return tuple(regime for regime in found if regime is not None)


def _regime(groups: Sequence[CaseGroup]) -> Regime | None:
    timed = [row for part in groups for row in part.arms if row.ok and row.speed_up is not None]
    several = [row for row in timed if row.case.decoder]
    if len({row.case.batch for row in several}) < 2:
        return None
    methods = {(row.case.method, row.case.variant, row.case.budget, row.case.codec) for row in several}
    alone = [row for row in timed if not row.case.decoder
             and (row.case.method, row.case.variant, row.case.budget, row.case.codec) in methods]
    held: dict[tuple[int, str], ReportRow] = {}  # two blocks may have one batch
    for row in (*several, *alone):
        held.setdefault((row.case.batch, row.case.label), row)
    rows = tuple(held.values())
    return Regime(groups[0].model, TITLE, rows, _sentence(rows), by_label=True)


def _sentence(rows: Sequence[ReportRow]) -> str:
    """The fastest at each batch, or that nothing is shown to be faster than the full cache."""
    said = []
    for batch in sorted({row.case.batch for row in rows}):
        gains = [(row.speed_up.value, row) for row in rows if row.case.batch == batch and row.speed_up and faster(row.speed_up)]
        if gains:
            gain, best = max(gains, key=lambda pair: pair[0])
            said.append(f"at batch {batch} {fmt.name(best.case.label)} is the fastest, {fmt.times(gain)}")
        else:
            said.append(f"at batch {batch} nothing is shown to be faster than the full cache, one token a pass")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."
