"""Columns of the tables, each defined once for the page, LaTeX, Markdown, frames and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from ..core import formatting as fmt
from ..core.facts import Facts
from ..core.limits import Limit
from ..core.spec import shown_share
from ..core.units import COST, FAMILIES, FLOPS, JOULES, KV, LIVE_KV, METRICS, OUTSIDE, STATE, TIME, WATTS, is_metric, metric, of_plug_ins
from ..stats.intervals import Interval, median_over_repeats
from .case_group import CaseGroup
from .report_row import FIDELITY, MASKED, QUALITY, ReportRow, by_definition, exactly, share_of_full

NO_INTERVAL, BY_DEFINITION = "no interval", "by definition"
FITS = 0.9  # fraction of the variance that a line must explain to have its slope printed
VISIBLE = 0.02  # of a speed-up: twice the error of latencies of three digits
_UNITS_IN_HEADINGS = ("token/s", "dB", "nat/token")  # units that a value of a table does not show


@dataclass(frozen=True)
class TableCell:
    """Cell with ``text``, small lines ``under`` and ``delta``, and ``order``, the number to sort by."""

    key: str
    text: str
    under: str = ""
    order: float | None = None
    span: int = 1
    empty: bool = False
    delta: str = ""


@dataclass(frozen=True)
class Column:
    """Column of a metric or a derived value.

    ``key`` is its name in exports, ``value`` returns a row's value with interval, or None with the reason in ``missing``. ``under`` and
    ``delta`` are small lines below it. ``counted`` values are exact, ``timed`` ones come from a clock. ``better`` is lower or higher;
    ``write`` and ``write_end`` return a value and the end of an interval as text.
    """

    key: str
    title: str
    tip: str
    value: Callable[[ReportRow], Interval | None]
    under: Callable[[ReportRow], str] = lambda row: ""
    delta: Callable[[ReportRow], str] = lambda row: ""
    missing: Callable[[ReportRow], str] = lambda row: ""
    empty: Callable[[ReportRow], str] = lambda row: fmt.DASH
    counted: bool = False
    timed: bool = False
    unit: str = field(kw_only=True)
    better: str = field(kw_only=True)
    write: Callable[[float], str] = field(kw_only=True)
    write_end: Callable[[float], str] | None = None

    @property
    def derived(self) -> bool:
        """True for a value computed from metrics of a row and the full cache."""
        return not is_metric(self.key)

    @property
    def of_images(self) -> bool:
        return not self.derived and metric(self.key).kind in ("fidelity", "quality")

    @property
    def per_image(self) -> bool:
        return self.key in FIDELITY or self.key in QUALITY or self.key in OUTSIDE

    @property
    def heading(self) -> str:
        """Title with the unit where values do not show it."""
        return f"{self.title}, {self.unit}" if self.unit in _UNITS_IN_HEADINGS else self.title

    def interval(self, row: ReportRow) -> Interval | None:
        """Return the interval of a measured value, None for counted and missing values."""
        return None if self.counted or (self.derived and row.case.role == "baseline") else self.value(row)

    def cell(self, row: ReportRow) -> TableCell:
        """Return the cell of a row, empty without a value."""
        value = self.value(row)
        if value is None:
            return TableCell(self.key, self.empty(row), empty=True)
        return TableCell(self.key, self.write(value.value), self.under(row), value.value, delta=self.delta(row))

    def reason(self, row: ReportRow) -> str:
        """Return why a row with results has no value in this column."""
        if not self.of_images and not row.timed:
            return "Reference rows are not timed."
        if row.case.role == "baseline" and (self.key == "saving" or self.key in FIDELITY):
            return "This row is the reference."
        return self.missing(row) or (row.unjudged if self.of_images else "") or "Not measured."


@dataclass(frozen=True)
class ColumnGroup:
    """Columns under one heading."""

    title: str
    tip: str
    columns: tuple[Column, ...]


# -- speed ------------------------------------------------------------------------------------------------------------
def _speedup_ends(row: ReportRow) -> str:
    if row.case.role == "baseline" or row.speedup is None:
        return BY_DEFINITION
    repeats = len(row.outcome.raw(TIME))
    alone = NO_INTERVAL if repeats > 1 else "one repeat"
    return f"{row.speedup.low:.2f}–{row.speedup.high:.2f}" if row.speedup.stated else alone


# -- memory and computation -------------------------------------------------------------------------------------------
def _counted(value: float | None) -> Interval | None:
    return None if value is None else exactly(value)


def _prefixed(prefix: str, value: float | None, write: Callable[[float], str]) -> str:
    return "" if value is None else f"{prefix} {write(value)}"


def _metric_column(name: str, title: str, tip: str, value: Callable[[ReportRow], Interval | None], **options: Any) -> Column:
    about = metric(name)
    return Column(name, title, tip, value, unit=about.unit, better=about.better, write=partial(fmt.metric_value, name=name), **options)


def median_column(name: str, title: str, tip: str, under: Callable[[ReportRow], str] = lambda row: "") -> Column:
    """Return a column for the median of a counted metric."""
    return _metric_column(name, title, tip, lambda row: _counted(row.median(name)), under=under, counted=True)


# -- images -----------------------------------------------------------------------------------------------------------
def image_column(name: str) -> Column:
    """Return a column for the mean of a metric over seeds and its difference from the full cache."""
    about = metric(name)

    def mean(row: ReportRow) -> Interval | None:
        return row.fidelity.get(name) or row.quality.get(name)

    def under(row: ReportRow) -> str:
        value = mean(row)
        if value is None or by_definition(row.case, name):
            return BY_DEFINITION
        if value.n < 2:
            return "one seed"
        return "–".join(_ends(value, name)) if value.stated else NO_INTERVAL

    def delta(row: ReportRow) -> str:
        value, to_full = mean(row), row.to_full.get(name)
        if value is None or value.n < 2 or by_definition(row.case, name) or to_full is None or not to_full.stated:
            return ""
        signed = (text if end < 0 else f"+{text}" for text, end in zip(_ends(to_full, name), (to_full.low, to_full.high), strict=True))
        return f"Δ {' to '.join(signed)}"

    def empty(row: ReportRow) -> str:
        return "other images" if row.same_distribution and name in FIDELITY else fmt.DASH

    title = about.heading or about.title.replace(", ", " ").removesuffix(" images")
    return _metric_column(name, title, about.tip or about.meaning, mean, under=under, delta=delta, empty=empty)


def _ends(interval: Interval, name: str) -> list[str]:
    return [fmt.metric_value(end, name).removesuffix(" %") for end in (interval.low, interval.high)]


# -- the columns --------------------------------------------------------------------------------------------------------
SAVING_LIVE = Column("saving_live", "Used saving", "1 − used bytes / used bytes of the full cache.", lambda row: _counted(row.saving_live),
                     counted=True, unit="share", better="higher", write=fmt.percent)
SAVING = Column("saving", "Saving", "1 − allocated bytes / allocated bytes of the full cache; below it, the same for used bytes.",
                lambda row: None if row.case.role == "baseline" else _counted(row.saving),
                lambda row: _prefixed("used", row.saving_live, fmt.percent),
                counted=True, unit="share", better="higher", write=fmt.percent)
SPEEDUP = Column(
    "speedup", "Speedup", "Median latency of the full cache, timed in turns with the method / median latency of the method.",
    lambda row: exactly(1.0) if row.case.role == "baseline" else row.speedup, _speedup_ends, missing=lambda row: row.no_speedup,
    timed=True, unit="×", better="higher", write=fmt.times, write_end="{:.2f}".format)
LATENCY = _metric_column(
    TIME, "Latency", "Median wall time of one batch, image decoding included.",
    lambda row: None if row.median(TIME) is None else median_over_repeats(row.outcome.raw(TIME)),
    under=lambda row: f"n = {len(row.outcome.raw(TIME))}", empty=lambda row: "not timed", timed=True)
SPEED = ColumnGroup("Speed", "against the full cache", (SPEEDUP, LATENCY))
MEMORY = ColumnGroup("KV memory", "both CFG rows", (
    SAVING,
    median_column(LIVE_KV, "Used", "Peak bytes of used keys and values; below it, the bytes allocated.",
                  lambda row: _prefixed("of", row.median(KV), fmt.size)),
    median_column(STATE, "State", "Bytes of the method's state besides keys and values."),
))
COMPUTATION = ColumnGroup("Computation", "both CFG rows", (
    replace(SAVING, tip="1 − FLOPs of an image / FLOPs without a cache."),
    median_column(FLOPS, "FLOPs", "Per image: matmuls and attention, without image decoding."),
    Column("added", "Cache size", "Bytes that the method keeps between steps; below it, the keys and values alone.",
           lambda row: _counted(row.held_bytes), lambda row: _prefixed("KV", row.median(KV) or None, fmt.size),
           counted=True, unit="B", better="lower", write=fmt.size),
))


def _energy_error(row: ReportRow) -> str:
    error = row.energy.error
    return "" if error is None else f"± {fmt.percent(error)}"


def _energy_column(name: str, title: str, tip: str, under: Callable[[ReportRow], str] = lambda row: "") -> Column:
    return _metric_column(name, title, tip, lambda row: median_over_repeats(row.outcome.raw(name)) if row.outcome.raw(name) else None,
                          under=under, missing=lambda row: row.no_energy, timed=True)


ENERGY = ColumnGroup("Energy", "of the device while it generates", (
    _energy_column(JOULES, "Per image", "Median energy of one image, image decoding included; below it, its error.", _energy_error),
    _energy_column(WATTS, "Mean power", "Median over the timed generations of their mean power."),
    _energy_column(COST, "Cost of 1,000 images", "Median latency × the price of the device per hour (run --price)."),
))


# -- the physical limit and equal memory: tables of their own, and columns that an export may name -------------------------
def _limit_column(key: str, title: str, tip: str, value: Callable[[Limit, float], float], unit: str, better: str,
                  write: Callable[[float], str]) -> Column:
    return Column(key, title, tip, lambda row: exactly(value(row.limit, row.median(TIME) or 0.0)) if row.limit else None,
                  unit=unit, better=better, write=write, counted=True)


def _slope(row: ReportRow) -> Interval | None:
    slope = row.outcome.facts.slope
    return exactly(slope.bytes_per_s) if slope and slope.bytes_per_s and slope.r2 >= FITS else None


def _at_no_entry(row: ReportRow) -> str:
    slope = row.outcome.facts.slope
    return f"+ {fmt.seconds(slope.intercept)}" if slope else ""


LIMITS = ColumnGroup("Roofline", "at the measured peak rates of this device", (
    LATENCY,
    _limit_column("roofline_time", "Roofline time", "Time of weights, used keys and values, and FLOPs at the peak rates of the device.",
                  lambda limit, latency: limit.roofline_time, "s", "lower", fmt.seconds),
    _limit_column("over_roofline", "× roofline", "Median latency / roofline time.", Limit.over, "×", "lower", fmt.times),
    _limit_column("mbu", "MBU", "Memory bandwidth utilization: required bytes per second / peak bandwidth.",
                  Limit.mbu, "share", "higher", fmt.percent),
    _limit_column("mfu", "MFU", "Model FLOPs utilization: required FLOPs per second / peak FLOP/s.",
                  Limit.mfu, "share", "higher", fmt.percent),
    Column("roofline_speedup", "Roofline speedup", "Speedup that the saved bytes and FLOPs allow at this batch size.",
           lambda row: _counted(row.roofline_speedup), unit="×", better="higher", write=fmt.times, counted=True),
    SPEEDUP,
    Column("of_roofline", "% of ideal", "Speedup / roofline speedup.",
           lambda row: exactly(row.speedup.value / row.roofline_speedup) if row.speedup and row.roofline_speedup else None,
           unit="share", better="higher", write=fmt.percent, counted=True),
    Column("step_slope", "Slope of a step", "Step time per byte attended; below it, the step time without any.", _slope,
           _at_no_entry, unit="B/s", better="higher", write=lambda value: f"{value / 1e9:.1f} GB/s", counted=True),
))
IMAGES_PER_SECOND = Column("images_per_s", "Images/s, equal batch", "Images of a batch / median latency.",
                           lambda row: _counted(row.images_per_second),
                           unit="image/s", better="higher", write="{:.2f}".format, counted=True, timed=True)
EQUAL_MEMORY = Column(
    "images_per_s_equal_memory", "Images/s, equal memory", "At the largest batch that needs no more memory than the full cache.",
    lambda row: _counted(row.equal_memory), lambda row: f"batch {row.equal_memory_batch}",
    unit="image/s", better="higher", write="{:.2f}".format, counted=True, timed=True)
RECOMMENDED = ColumnGroup("At equal quality", "smallest non-inferior budget",
                          (SAVING, SPEEDUP, IMAGES_PER_SECOND, EQUAL_MEMORY))


# -- the headline table -----------------------------------------------------------------------------------------------
def column_groups(group: CaseGroup) -> tuple[ColumnGroup, ...]:
    """Return the columns of a group's table; masked models have computation instead of KV memory.

    There is an energy column if any row has energy."""
    masked = group.paradigm == MASKED
    measured = {name for row in group.rows for name in (*row.fidelity, *row.quality)}
    sampled = {name for row in group.rows for name in row.outcome.samples}
    set_families = [base for base in FAMILIES if FAMILIES[base].column]
    sets = [name for base in set_families if (name := next((value[0] for row in group.rows if (value := row.of_set(base))), ""))]
    fidelity = ColumnGroup("Fidelity", f"to the full {'model' if masked else 'cache'} at the same seeds",
                           tuple(map(image_column, (*_of_kind("fidelity", measured, masked), *of_plug_ins(measured, "fidelity")))))
    quality = ColumnGroup("Quality", "of the images alone", tuple(map(image_column, (
        *_of_kind("quality", measured, masked), *of_plug_ins(measured, "quality"), *sets))))
    energy = replace(ENERGY, columns=tuple(column for column in ENERGY.columns if column.key in sampled))
    recorded = {name for row in group.rows for name in row.outcome.facts.recorded()}
    notes = ColumnGroup("Recorded", "beside the samples", tuple(
        _fact_column(each.name, each.metadata) for each in fields(Facts) if each.metadata.get("column") and each.name in recorded))
    return (_with_costs(SPEED, sampled, "speed"), _with_costs(COMPUTATION if masked else MEMORY, sampled, "memory", "work"),
            *(part for part in (energy, notes) if part.columns), fidelity, quality)


def _fact_column(name: str, about: Mapping[str, str]) -> Column:
    return Column(name, about["column"], f"{about['meaning'][:1].upper()}{about['meaning'][1:]}.",
                  lambda row: _counted(getattr(row.outcome.facts, name)), counted=True, unit=about["unit"], better=about["better"],
                  write=lambda value: f"{value:.3g} {about['unit']}".rstrip())


def _of_kind(kind: str, measured: set[str], masked: bool) -> Iterator[str]:
    prompted = any(METRICS[name].prompted for name in measured if name in METRICS)
    for name, about in METRICS.items():
        fits = about.kind == kind and about.column and about.tokens in ("", "vectors" if masked else "indices")
        replaced = prompted and about.of_model and not about.prompted
        if fits and not replaced and (name in measured or not about.plan_name):
            yield name


def _with_costs(group: ColumnGroup, sampled: set[str], *kinds: str) -> ColumnGroup:
    names = [name for kind in kinds for name in of_plug_ins(sampled, kind)]
    more = (median_column(name, metric(name).title, metric(name).meaning) for name in names)
    return replace(group, columns=(*group.columns, *more))


def columns_of(groups: Iterable[ColumnGroup]) -> tuple[Column, ...]:
    """Return the columns of all groups."""
    return tuple(column for group in groups for column in group.columns)


def known_columns(group: CaseGroup) -> dict[str, Column]:
    """Return every column that an export of the group may name, by key."""
    groups = (*column_groups(group), LIMITS, RECOMMENDED)
    return {column.key: column for column in (*columns_of(groups), SAVING_LIVE)}


def derived_columns(group: CaseGroup) -> tuple[Column, ...]:
    """Return columns of derived values, without images per second, which repeats the latency."""
    return tuple(column for column in known_columns(group).values() if column.derived and column is not IMAGES_PER_SECOND)


def cells(row: ReportRow, groups: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """Return the cells of a row after its name and budget.

    A failed case has one cell with its status and reason; a row without image metrics has one cell for these, with the reason.
    """
    columns = columns_of(groups)
    if not row.ok:
        return (TableCell("status", str(row.outcome.status), row.outcome.reason, span=len(columns)),)
    if row.unjudged and not row.fidelity and not row.quality:
        measured = [column for column in columns if not column.of_images]
        reason = TableCell("judgement", "not evaluated", row.unjudged, span=len(columns) - len(measured), empty=True)
        return (*(column.cell(row) for column in measured), reason)
    return tuple(column.cell(row) for column in columns)


def budget_cell(row: ReportRow) -> TableCell:
    """Return the budget, and below it the fraction of visual entries actually kept."""
    true = row.outcome.facts.true_ratio
    share = f"true {true:.3f}" if true is not None and row.case.role == "candidate" else ""
    return TableCell("budget", shown_share(row.case.stated_budget), share, share_of_full(row.case.stated_budget))


def paired_speed_note(group: CaseGroup) -> str:
    """Return why speedups differ from the ratios of latencies in the table, or nothing."""
    full = group.full.median(TIME) if group.full else None
    ratios = [(abs(ratio - row.speedup.value) / row.speedup.value, row.label, ratio) for row in group.candidates
              if full and row.speedup and row.outcome.facts.full_beside and (ratio := full / (row.median(TIME) or full))]
    distance, label, ratio = max(ratios, default=(0.0, "", 1.0))
    if distance <= VISIBLE:
        return ""
    return ("Speedups compare with the full cache timed in turns with each method, not with its row above; by that row, "
            f"{fmt.name(label)} would be at {fmt.times(ratio)}.")
