"""Sentences above the table of a group."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import formatting as fmt
from ..core.spec import shown_share
from ..core.units import FID, FLOPS, KV, TIME, metric
from ..core.wording import count
from ..stats.intervals import Interval
from .case_group import CaseGroup
from .report_row import MASKED, ReportRow, faster

NO_BASELINE = "This run has no full cache, so it has no speedups or savings."


def sentences(group: CaseGroup) -> dict[str, str]:
    """Return a sentence about the full cache, and one about every budget, by their names."""
    about_budgets = {f"Budget {shown_share(budget)}": _about_budget(group, group.candidates_at(budget)) for budget in group.budgets}
    return {"Full cache": _about_full(group), **about_budgets}


def _about_full(group: CaseGroup) -> str:
    if group.full is None:
        return NO_BASELINE
    if not group.full.ok:
        return f"The full cache failed ({group.full.outcome.status}), so there are no speedups or savings."
    if group.searched:
        return "Largest batch that fits, and throughput there. Latency and quality are in other sections."
    latency, flops, kv = (group.full.median(name) for name in (TIME, FLOPS, KV))
    text = "Not timed" if latency is None else f"{fmt.seconds(latency)} per batch of {count(group.case.batch, 'image')}"
    if group.full.paradigm == MASKED:
        text += "" if flops is None else f", {fmt.with_unit(flops, FLOPS)} per image, no cache"
    elif kv is not None:
        text += f", {fmt.size(kv)} of keys and values"
    return f"{text}.{_fid(group.full)}"


def _fid(full: ReportRow) -> str:
    if (value := full.of_set(FID)) is None:
        return ""
    name, fid = value
    text = f" {metric(name).title}: {fid.text(name)}"
    facts = full.outcome.facts
    bias, real = (facts.bias or {}).get(name), (facts.real or {}).get(name)
    if bias and bias > 0:
        text += f", including about {fmt.metric_value(bias, name)} is small-sample bias"
    if real:
        text += f"; {Interval(real[0], real[1], real[2], fid.confidence, fid.n).text(name)} for as many other real images"
    return f"{text}."


def _about_budget(group: CaseGroup, rows: Sequence[ReportRow]) -> str:
    measured = [row for row in rows if row.ok]
    if not measured:
        return "No results."
    if group.random:
        return f"{_fastest(measured)} Weights are random, so nothing is ranked."
    ranked = [row for row in measured if row.place is not None]
    if not ranked:
        return "No method is ranked."
    return " ".join(filter(None, (_closest(ranked), _fastest(ranked, [row for row in measured if row.place is None]))))


def _closest(ranked: Sequence[ReportRow]) -> str:
    by_fid = [(value[1], row, value[0]) for row in ranked if (value := row.of_set(FID))]
    if not by_fid:
        return ""
    fid, best, name = min(by_fid, key=lambda entry: entry[1].place or 0)
    ties = [fmt.name(row.name) for other, row, _ in by_fid if row is not best and other.low <= fid.high]
    tied = f" (tied with {', '.join(ties)})" if ties else ""
    return f"Best {metric(name).title}: {fmt.name(best.name)}, {fid.text(name)}{tied}."


def _fastest(ranked: Sequence[ReportRow], unranked: Sequence[ReportRow] = ()) -> str:
    """Return a sentence on the fastest of the ``ranked`` rows, which says so if an unranked one is faster."""
    timed = [(row.speedup, row) for row in ranked if row.speedup]
    if not timed:
        return ""
    above = [pair for pair in timed if faster(pair[0])]
    speedup, row = max(above or timed, key=lambda pair: pair[0].value)
    ends = f"{speedup.low:.2f}–{speedup.high:.2f}, " if speedup.stated else ""
    beaten = any(other.speedup.value > speedup.value for other in unranked if other.speedup)
    who, none = ("ranked method", "No ranked method has a measurable speedup.") if beaten else ("", "No measurable speedup.")
    value = f"{f'Fastest {who}'.strip()}: {fmt.name(row.name)}, {fmt.times(speedup.value)} ({ends}n = {speedup.n})."
    return value if above else f"{none} {value}"
