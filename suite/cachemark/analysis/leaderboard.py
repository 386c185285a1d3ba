"""The leaderboard as text: its columns, and the cells of a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.result import FULL_BESIDE
from ..core.spec import shown_share
from ..core.units import GENEVAL, PROMPT_SCORES, metric, of_plug_ins
from ..stats.intervals import Interval
from . import formatting as fmt
from .case_group import CaseGroup
from .report_row import FIDELITY, MASKED, ReportRow, by_definition, share_of_full


@dataclass(frozen=True)
class Column:
    """``key`` is the name of a metric, or of a figure that is derived from some."""

    key: str
    title: str
    tip: str

    @property
    def better(self) -> str:
        """The end that a reader wants to see first: lower or higher."""
        return _DERIVED.get(self.key) or metric(self.key).better


@dataclass(frozen=True)
class ColumnGroup:
    """Columns under one heading. Fidelity and quality are two groups and share no column."""

    title: str
    tip: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class TableCell:
    """One cell: ``text`` large, ``under`` and ``delta`` small below it, ``order`` the number to sort by. ``span`` counts columns."""

    key: str
    text: str
    under: str = ""
    order: float | None = None
    span: int = 1
    empty: bool = False
    delta: str = ""


NO_INTERVAL, BY_DEFINITION = "no interval", "by definition"
VISIBLE = 0.02  # of a speed-up: twice what latencies of three digits may be off by
_DERIVED = {"speed_up": "higher", "saving": "higher", "added": "lower"}  # directions of figures that are no metrics
_SPEED = ColumnGroup("Speed", "against the full cache", (
    Column("speed_up", "Speed-up", "Median latency of the full cache, timed in turns with the method, / median latency of the method."),
    Column("latency", "Latency", "Median wall time of one batch, image decoding included."),
))
_IMAGES = (
    Column("psnr", "PSNR", "In dB against the full cache's image, capped at 60."),
    Column("ssim", "SSIM", "Against the full cache's image."),
)
_QUALITY = ColumnGroup("Quality", "of the images alone", (
    Column("legend", "Legend score", "Share of hues that match the image's own legend. It sees neither shapes nor their number nor "
           "their place, and is no comparison with the full cache."),
))
KEPT = (
    _SPEED,
    ColumnGroup("KV memory", "both CFG rows", (
        Column("saving", "Saving", "1 − allocated bytes / allocated bytes of the full cache; below it, the same for live bytes."),
        Column("kv_logical", "Live", "Bytes of live keys and values at the fullest step; below it, the bytes allocated."),
        Column("kv_state", "State", "Bytes of everything else the method keeps."),
    )),
    ColumnGroup("Fidelity", "to the full cache at the same seeds", (
        Column("token_agreement", "Agreement", "Share of positions with the full cache's token."),
        Column("kl", "KL", "KL(full || method) in nat per token."),
        *_IMAGES,
    )),
    _QUALITY,
)
COMPUTED = (
    _SPEED,
    ColumnGroup("Computation", "both CFG rows; without a cache nothing is kept", (
        Column("saving", "Saving", "1 − FLOPs of an image / FLOPs without a cache."),
        Column("flops", "FLOPs", "Of one image: matrix products and attention, image decoding left out."),
        Column("added", "Bytes added", "Everything the method keeps between passes; below it, the keys and values alone."),
    )),
    ColumnGroup("Fidelity", "to the full model at the same seeds", (
        Column("token_distance", "Distance", "Root mean square difference of the tokens, which have unit variance."),
        Column("forced_distance", "Forced", "The same, each token drawn after the full model's own tokens."),
        *_IMAGES,
    )),
    _QUALITY,
)
ASKED = (*GENEVAL, "dpg", "image_reward", "hpsv2")  # by benchmarks of text-to-image models
SETS = ("fid", "precision", "recall")  # figures of whole sets of images that stand in the table; the others stand below it


def column_groups(group: CaseGroup) -> tuple[ColumnGroup, ...]:
    """The columns of a group's table: in a masked model, whose full form keeps nothing, computation takes the place of KV memory; figures
    of whole sets of images stand beside the legend score where they were measured, and scores of prompts in its place."""
    *held, fidelity, quality = COMPUTED if group.paradigm == MASKED else KEPT
    measured = {name for row in group.rows for name in (*row.fidelity, *row.quality)}
    sets = (next((found[0] for row in group.rows if (found := row.of_set(base))), "") for base in SETS)
    images = [name for name in (*PROMPT_SCORES, *ASKED, "clip_score", "class_accuracy") if name in measured]
    if measured & {*PROMPT_SCORES, *ASKED}:
        quality = replace(quality, columns=())
    likeness, looks = ((*of_plug_ins(measured, kind),) for kind in ("fidelity", "quality"))
    return (*held, _with_metrics(fidelity, (*(measured & {"lpips"}), *likeness)),
            _with_metrics(quality, (*images, *looks, *filter(None, sets))))


def _with_metrics(group: ColumnGroup, names: Iterable[str]) -> ColumnGroup:
    """The group with a column more for each of some metrics."""
    more = (Column(name, metric(name).title.replace(", ", " ").removesuffix(" images"), metric(name).meaning) for name in names)
    return replace(group, columns=(*group.columns, *more))


def columns_of(shown: Iterable[ColumnGroup]) -> tuple[Column, ...]:
    """The columns of all groups."""
    return tuple(column for group in shown for column in group.columns)


def cells(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """The cells right of a row's name and budget. A case that is not ok has one cell, its status and the reason."""
    if not row.ok:
        return (TableCell("status", str(row.outcome.status), row.reason, span=len(columns_of(shown))),)
    if row.paradigm == MASKED:
        held = _median(row, "flops"), _added(row)
    else:
        allocated = row.median("kv_allocated")
        held = _median(row, "kv_logical", "" if allocated is None else f"of {fmt.size(allocated)}"), _median(row, "kv_state")
    return (_speed_up(row), _latency(row), _saving(row), *held, *_image_cells(row, shown))


def in_turns(group: CaseGroup) -> str:
    """The sentence that says why speed-ups are not the ratios of the latencies in the table, with the ratio that is furthest from its
    speed-up; empty where nobody would see a difference."""
    whole = group.full.median("latency") if group.full else None
    seen = [(abs(ratio - row.speed_up.value) / row.speed_up.value, row.case.label, ratio) for row in group.arms
            if whole and row.speed_up and row.outcome.facts.get(FULL_BESIDE) and (ratio := whole / (row.median("latency") or whole))]
    apart, label, ratio = max(seen, default=(0.0, "", 1.0))
    if apart <= VISIBLE:
        return ""
    return ("Speed-ups are against the full cache timed in turns with each method, not against its row above: by the two rows, "
            f"{fmt.name(label)} would be at {fmt.times(ratio)}.")


def budget_cell(row: ReportRow) -> TableCell:
    """The budget, and below it the share of visual entries that was really kept."""
    true = row.outcome.facts.get("true_ratio")
    kept = f"true {true:.3f}" if isinstance(true, (int, float)) and row.case.role == "arm" else ""
    return TableCell("budget", shown_share(row.case.budget), kept, share_of_full(row.case.budget))


def _none(key: str, text: str = fmt.DASH) -> TableCell:
    return TableCell(key, text, empty=True)


def _speed_up(row: ReportRow) -> TableCell:
    if row.case.role == "baseline":
        return TableCell("speed_up", fmt.times(1.0), BY_DEFINITION, 1.0)
    if row.speed_up is None:
        return _none("speed_up")
    ends, repeats = row.speed_up, len(row.outcome.raw("latency"))
    alone = NO_INTERVAL if repeats > 1 else "one repeat" if repeats else "medians alone: raw values pruned"
    return TableCell("speed_up", fmt.times(ends.value), f"{ends.low:.2f}–{ends.high:.2f}" if ends.stated else alone, ends.value)


def _latency(row: ReportRow) -> TableCell:
    value = row.median("latency")
    if value is None:
        return _none("latency", "not timed")
    repeats = len(row.outcome.raw("latency"))
    return TableCell("latency", fmt.seconds(value), f"n = {repeats}" if repeats else "median alone: raw values pruned", value)


def _saving(row: ReportRow) -> TableCell:
    if row.saving is None or row.case.role == "baseline":
        return _none("saving")
    live = "" if row.saving_live is None else f"live {fmt.percent(row.saving_live)}"
    return TableCell("saving", fmt.percent(row.saving), live, row.saving)


def _added(row: ReportRow) -> TableCell:
    kv = row.median("kv_allocated")
    return _none("added") if row.kept is None else TableCell("added", fmt.size(row.kept), f"KV {fmt.size(kv)}" if kv else "", row.kept)


def _median(row: ReportRow, name: str, under: str = "") -> TableCell:
    value = row.median(name)
    return _none(name) if value is None else TableCell(name, fmt.figure(value, name), under, value)


def _image_cells(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """Means over seeds with their intervals, or one cell that says why there are none."""
    names = [column.key for column in columns_of(group for group in shown if group.title in ("Fidelity", "Quality"))]
    if row.no_judgement and not row.fidelity and not row.quality:
        return (TableCell("judgement", "not judged", row.no_judgement, span=len(names), empty=True),)
    held = {**row.fidelity, **row.quality}
    absent = dict.fromkeys(FIDELITY, "other images") if row.same_law else {}
    return tuple(_mean(row, name, held[name]) if name in held else _none(name, absent.get(name, fmt.DASH)) for name in names)


def _mean(row: ReportRow, name: str, mean: Interval) -> TableCell:
    """A figure, its interval, and that of its difference to the full cache's at the same seeds, where that is known."""
    text = fmt.figure(mean.value, name)
    if by_definition(row.case, name):
        return TableCell(name, text, BY_DEFINITION, mean.value)
    if mean.n < 2:
        return TableCell(name, text, "one seed" if row.outcome.raw(name) else "mean alone: raw values pruned", mean.value)
    to_full = row.to_full.get(name)
    delta = f"Δ {_ends(to_full, name, signed=True)}" if to_full and to_full.stated else ""
    return TableCell(name, text, _ends(mean, name) if mean.stated else NO_INTERVAL, mean.value, delta=delta)


def _ends(interval: Interval, name: str, *, signed: bool = False) -> str:
    ends = [fmt.figure(end, name).removesuffix(" %") for end in (interval.low, interval.high)]
    if not signed:
        return "–".join(ends)
    return " to ".join(text if end < 0 else f"+{text}" for text, end in zip(ends, (interval.low, interval.high), strict=True))
