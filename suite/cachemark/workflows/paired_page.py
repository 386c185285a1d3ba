"""The page of a comparison in pairs: one row for each case, and the verdicts of the pairs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.result import Outcome
from ..core.units import is_metric, metric
from ..gate import nights as ledger
from ..store.db import Store
from ..store.rows import RunRecord, Verdict
from .check import ENDED, RunJudgement, judge_comparison, with_decisions


@dataclass(frozen=True)
class PairedVerdicts:
    """The verdicts of a comparison, as a page shows those of a baseline. ``arms``: what they are called; ``rows``: without equal arms;
    ``cases``: how many of its cells were judged, and how many were to be; ``command`` measures it again."""

    arms: tuple[str, ...]
    rows: tuple[Verdict, ...]
    cases: tuple[int, int]
    exit_code: int
    lines: tuple[str, ...]
    command: str

    def summary(self) -> Sequence[str]:
        """Lines about all of it, the verdict first."""
        return self.lines


def paired_verdicts(store: Store, run: RunRecord, register: Path | None = None) -> PairedVerdicts:
    """Those of a comparison, with what the incidents of a register say of them. Raises NothingMeasured for one that broke off."""
    found = with_decisions(judge_comparison(store, run), store, run, register)
    assert found.night is not None
    night, tally = found.night, found.night.tally
    plan = str(run.stored_plan.get("file") or run.plan.removeprefix(ledger.COMPARISON))
    return PairedVerdicts(tuple(map(str, night.stated.get("arms", ()))), tally.rows, (len(tally.covered), tally.cells), found.exit_code,
                          _said(found), shlex.join(["cachemark", "compare", plan, *night.arms]))


def _said(found: RunJudgement) -> tuple[str, ...]:
    remarks = found.remarks()
    decided = found.summary()[: -len(remarks)]
    return (f"{ENDED[found.exit_code]}: {remarks[0][0].lower()}{remarks[0][1:]}", *decided, *remarks[1:])


def by_case(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each case of a comparison, in the order in which cells were first measured: the second arm's where both arms are the
    same case, equal arms left out. A process counts as one repeat of its median, since pairs are independent and what is timed within a
    process is not; images are those that were made to be compared, where there are any."""
    held: dict[tuple[str, str], list[Outcome]] = {}
    made = list(outcomes)
    equal = {id(outcome) for outcome in ledger.equal_arms(made)}
    for outcome in (outcome for outcome in made if id(outcome) not in equal):
        held.setdefault((outcome.case.key, str(outcome.facts.get("pair", {}).get("arm", ""))), []).append(outcome)
    chosen = {key: min((arm for case, arm in held if case == key), key=_place) for key in dict.fromkeys(case for case, _ in held)}
    return [_joined(held[key, arm]) for key, arm in chosen.items()]


def _place(arm: str) -> int:
    """The second arm first; what is neither, as in a store that was edited, last."""
    return _ARMS.index(arm) if arm in _ARMS else len(_ARMS)


_ARMS = ("after", "before")


def _joined(processes: Sequence[Outcome]) -> Outcome:
    """Outcomes of one case as one; the last failure where none of them ran."""
    ran = [outcome for outcome in processes if outcome.ok]
    timed = [outcome for outcome in ran if outcome.facts.get("pair", {}).get("what") != "images"] or ran
    if not ran:
        return processes[-1]
    last = ran[-1]
    repeated = {name: [median for outcome in timed if (median := outcome.median(name)) is not None]
                for name in timed[-1].samples if is_metric(name) and metric(name).timed}
    return replace(last, samples={**timed[-1].samples, **last.samples, **repeated},
                   facts={name: value for name, value in last.facts.items() if name != "pair"})
