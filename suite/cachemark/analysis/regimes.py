"""At which batches and budgets a method or a decoder is faster than the full cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..core.spec import Case, shown_share
from . import formatting as fmt
from .case_group import CaseGroup, over_batches
from .report_row import ReportRow, faster, share_of_full

TITLE = "several tokens a pass"


@dataclass(frozen=True)
class Regime:
    """A method on a model at all batches and budgets, and in a sentence those at which it does not pay.

    ``by_label``: its rows are of several methods, each with its budget.
    """

    model: str
    method: str
    rows: tuple[ReportRow, ...]
    sentence: str
    by_label: bool = False


def regimes(parts: Iterable[CaseGroup]) -> tuple[Regime, ...]:
    """One for each method of every model that was measured at two batches or more, all else being equal."""
    candidates = [_regime(groups, name) for groups in _families(parts)
                  for name in dict.fromkeys(name for part in groups for name in part.methods)]
    return tuple(regime for regime in candidates if regime is not None)


def _families(parts: Iterable[CaseGroup]) -> list[list[CaseGroup]]:
    """Groups that differ in nothing but the batch, of which there are two or more."""
    families = over_batches(part for part in parts if not part.searched)
    return [groups for groups in families if len({part.case.batch for part in groups}) > 1]


def _by_batch(rows: Iterable[ReportRow], name: Callable[[ReportRow], str]) -> tuple[ReportRow, ...]:
    """The first row of each batch and name, because two blocks of a plan may have one batch."""
    first: dict[tuple[int, str], ReportRow] = {}
    for row in rows:
        first.setdefault((row.case.batch, name(row)), row)
    return tuple(first.values())


def _regime(groups: Sequence[CaseGroup], name: str) -> Regime | None:
    rows = _by_batch((row for part in groups for row in part.candidates if row.method == name and row.ok and not row.case.decoder),
                     lambda row: row.case.budget)
    measured = [row.case for row in rows if row.speedup is not None]
    if not measured:
        return None
    slow = [row.case for row in rows if row.speedup is not None and not faster(row.speedup)]
    return Regime(groups[0].model, name, rows, _regime_sentence(name, measured, slow))


def _regime_sentence(name: str, measured: Sequence[Case], slow: Sequence[Case]) -> str:
    """At which batches and budgets the full cache is better: where a method is not faster (``slow``)."""
    budgets_by_batch: dict[int, list[str]] = {}
    for case in sorted(slow, key=lambda case: (case.batch, -share_of_full(case.budget))):
        budgets_by_batch.setdefault(case.batch, []).append(shown_share(case.budget))
    if not budgets_by_batch:
        return f"{fmt.name(name)} is faster than the full cache at every batch and budget measured here."
    budgets_measured = {batch: len({case.budget for case in measured if case.batch == batch}) for batch in budgets_by_batch}
    where = [f"at batch {batch}" + ("" if len(budgets) == budgets_measured[batch] else f" (budget {_list(budgets)})")
             for batch, budgets in budgets_by_batch.items()]
    return f"Use the full cache {_list(where)}: {fmt.name(name)} is not shown to be faster there."


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


# -- decoders: one token per pass against several ---------------------------------------------------------------------
def decoder_regimes(parts: Iterable[CaseGroup]) -> tuple[Regime, ...]:
    """One for each model with a decoder at two batches or more, all else being equal.

    Its rows are those of every decoder, alone and beside a method, and of those methods alone.
    """
    return tuple(regime for groups in _families(parts) if (regime := _decoder_regime(groups)) is not None)


def _decoder_regime(groups: Sequence[CaseGroup]) -> Regime | None:
    timed = [row for part in groups for row in part.candidates if row.ok and row.speedup is not None]
    several = [row for row in timed if row.case.decoder]
    if len({row.case.batch for row in several}) < 2:
        return None
    methods = {(row.case.method, row.case.variant, row.case.budget, row.case.codec) for row in several}
    alone = [row for row in timed if not row.case.decoder
             and (row.case.method, row.case.variant, row.case.budget, row.case.codec) in methods]
    rows = _by_batch((*several, *alone), lambda row: row.case.label)
    return Regime(groups[0].model, TITLE, rows, _decoder_sentence(rows), by_label=True)


def _decoder_sentence(rows: Sequence[ReportRow]) -> str:
    """The fastest at each batch, or that nothing is shown to be faster than the full cache."""
    sentences = []
    for batch in sorted({row.case.batch for row in rows}):
        gains = [(row.speedup.value, row) for row in rows if row.case.batch == batch and row.speedup and faster(row.speedup)]
        if gains:
            gain, best = max(gains, key=lambda pair: pair[0])
            sentences.append(f"at batch {batch} {fmt.name(best.case.label)} is the fastest, {fmt.times(gain)}")
        else:
            sentences.append(f"at batch {batch} nothing is shown to be faster than the full cache, one token a pass")
    text = "; ".join(sentences)
    return f"{text[0].upper()}{text[1:]}."
