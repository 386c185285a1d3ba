"""The leaderboard as text: its columns, and the cells of a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.spec import shown_share
from ...core.units import metric
from ...stats.bootstrap import Interval
from .. import formatting as fmt
from .case_group import CaseGroup
from .report_row import MASKED, ReportRow, share_of_full


@dataclass(frozen=True)
class Column:
    """``key`` names it for sorting, ``better`` (lower, higher or nothing) says which end a reader wants to see first."""

    key: str
    title: str
    better: str
    tip: str


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


_SPEED = ColumnGroup("Speed", "against the full cache", (
    Column("speed_up", "Speed-up", "higher", "Median latency of the full cache / median latency of the method."),
    Column("latency", "Latency", "lower", "Median wall time of one batch, image decoding included."),
))
_IMAGES = (
    Column("psnr", "PSNR", "higher", "In dB against the full cache's image, capped at 60."),
    Column("ssim", "SSIM", "higher", "Against the full cache's image."),
)
_QUALITY = ColumnGroup("Quality", "of the images alone", (
    Column("legend", "Legend score", "higher", "Share of hues that match the image's own legend. Not a comparison with the full cache."),
))
KEPT = (
    _SPEED,
    ColumnGroup("KV memory", "both CFG rows", (
        Column("saving", "Saving", "higher", "1 − allocated bytes / allocated bytes of the full cache; below it, the same for live bytes."),
        Column("kv_logical", "Live", "lower", "Bytes of live keys and values at the fullest step; below it, the bytes allocated."),
        Column("kv_state", "State", "lower", "Bytes of everything else the method keeps."),
    )),
    ColumnGroup("Fidelity", "to the full cache at the same seeds", (
        Column("token_agreement", "Agreement", "higher", "Share of positions with the full cache's token."),
        Column("kl", "KL", "lower", "KL(full || method) in nat per token."),
        *_IMAGES,
    )),
    _QUALITY,
)
COMPUTED = (
    _SPEED,
    ColumnGroup("Computation", "both CFG rows; without a cache nothing is kept", (
        Column("saving", "Saving", "higher", "1 − FLOPs of an image / FLOPs without a cache."),
        Column("flops", "FLOPs", "lower", "Of one image: matrix products and attention, image decoding left out."),
        Column("added", "Bytes added", "lower", "Everything the method keeps between passes; below it, the keys and values alone."),
    )),
    ColumnGroup("Fidelity", "to the full model at the same seeds", (
        Column("token_distance", "Distance", "lower", "Root mean square difference of the tokens, which have unit variance."),
        Column("forced_distance", "Forced", "lower", "The same, each token drawn after the full model's own tokens."),
        *_IMAGES,
    )),
    _QUALITY,
)
SETS = ("fid", "precision", "recall")  # figures of whole sets of images that stand in the table; the others stand below it


def column_groups(group: CaseGroup) -> tuple[ColumnGroup, ...]:
    """The columns of a group's table: in a masked model, whose full form keeps nothing, computation takes the place of KV memory; figures
    of whole sets of images stand beside the legend score where they were measured."""
    *held, fidelity, quality = COMPUTED if group.paradigm == MASKED else KEPT
    if any("lpips" in row.fidelity for row in group.rows):
        fidelity = replace(fidelity, columns=(*fidelity.columns, _column("lpips")))
    if any("clip_score" in row.quality for row in group.rows):
        quality = replace(quality, columns=(*quality.columns, _column("clip_score")))
    return (*held, fidelity, replace(quality, columns=(*quality.columns, *_of_sets(group))))


def width(shown: tuple[ColumnGroup, ...]) -> int:
    """Columns of a table."""
    return sum(len(group.columns) for group in shown)


def _of_sets(group: CaseGroup) -> tuple[Column, ...]:
    rows = [row for row in group.rows if row.ok]
    accuracy = ("class_accuracy",) if any("class_accuracy" in row.quality for row in rows) else ()
    sets = [next((found[0] for row in rows if (found := row.of_set(base))), "") for base in SETS]
    return tuple(_column(name) for name in (*accuracy, *filter(None, sets)))


def _column(name: str) -> Column:
    short = metric(name).title.replace(", ", " ").removesuffix(" images")
    return Column(name, short, metric(name).better, metric(name).meaning)


def _names(shown: tuple[ColumnGroup, ...], title: str) -> list[str]:
    return [column.key for group in shown if group.title == title for column in group.columns]


def cells(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """The cells right of a row's name and budget. A case that is not ok has one cell, its status and the reason."""
    if not row.ok:
        return (TableCell("status", str(row.outcome.status), row.reason, span=width(shown)),)
    held = (_median(row, "flops"), _added(row)) if row.paradigm == MASKED else (_live(row), _median(row, "kv_state"))
    return (_speed_up(row), _latency(row), _saving(row), *held, *_image_cells(row, shown))


def budget_cell(row: ReportRow) -> TableCell:
    """The budget, and below it the share of visual entries that was really kept."""
    true = row.outcome.facts.get("true_ratio")
    kept = f"true {true:.3f}" if isinstance(true, (int, float)) and row.case.role == "arm" else ""
    return TableCell("budget", shown_share(row.case.budget), kept, share_of_full(row.case.budget))


def _none(key: str, text: str = fmt.DASH) -> TableCell:
    return TableCell(key, text, empty=True)


def _speed_up(row: ReportRow) -> TableCell:
    if row.case.role == "baseline":
        return TableCell("speed_up", fmt.times(1.0), "by definition", 1.0)
    if row.speed_up is None:
        return _none("speed_up")
    ends = row.speed_up
    return TableCell("speed_up", fmt.times(ends.value), f"{ends.low:.2f}–{ends.high:.2f}", ends.value)


def _latency(row: ReportRow) -> TableCell:
    value = row.median("latency")
    if value is None:
        return _none("latency", "not timed")
    return TableCell("latency", fmt.seconds(value), f"n = {len(row.outcome.samples['latency'])}", value)


def _saving(row: ReportRow) -> TableCell:
    if row.saving is None or row.case.role == "baseline":
        return _none("saving")
    live = "" if row.saving_live is None else f"live {fmt.percent(row.saving_live)}"
    return TableCell("saving", fmt.percent(row.saving), live, row.saving)


def _added(row: ReportRow) -> TableCell:
    if row.kept is None:
        return _none("added")
    kv = row.median("kv_allocated")
    return TableCell("added", fmt.size(row.kept), f"KV {fmt.size(kv)}" if kv else "", row.kept)


def _live(row: ReportRow) -> TableCell:
    live, allocated = row.median("kv_logical"), row.median("kv_allocated")
    if live is None:
        return _none("kv_logical")
    return TableCell("kv_logical", fmt.size(live), "" if allocated is None else f"of {fmt.size(allocated)}", live)


def _median(row: ReportRow, name: str) -> TableCell:
    value = row.median(name)
    return _none(name) if value is None else TableCell(name, fmt.figure(value, name), "", value)


def _image_cells(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """Means over seeds with their intervals, or one cell that says why there are none."""
    names = (*_names(shown, "Fidelity"), *_names(shown, "Quality"))
    if row.no_judgement and not row.fidelity and not row.quality:
        return (TableCell("judgement", "not judged", row.no_judgement, span=len(names), empty=True),)
    held = {**row.fidelity, **row.quality}
    return tuple(_mean(name, held[name], row.to_full.get(name)) if name in held else _none(name) for name in names)


def _mean(name: str, mean: Interval, to_full: Interval | None) -> TableCell:
    """A figure, its interval, and that of its difference to the full cache's at the same seeds, where that is known."""
    text = fmt.figure(mean.value, name)
    if mean.n < 2:
        return TableCell(name, text, "one seed", mean.value)
    delta = f"Δ {_ends(to_full, name, signed=True)}" if to_full and to_full.n > 1 else ""
    return TableCell(name, text, _ends(mean, name), mean.value, delta=delta)


def _ends(interval: Interval, name: str, *, signed: bool = False) -> str:
    if interval.low == interval.high:
        return "0" if signed and not interval.low else "no spread"
    ends = [fmt.figure(end, name).removesuffix(" %") for end in (interval.low, interval.high)]
    if not signed:
        return "–".join(ends)
    return " to ".join(text if end < 0 else f"+{text}" for text, end in zip(ends, (interval.low, interval.high), strict=True))
