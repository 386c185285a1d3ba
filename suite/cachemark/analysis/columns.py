"""The columns of the headline table. One instance defines a column for the page, LaTeX, Markdown, notebooks, frames and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..core.units import FAMILIES, METRICS, is_metric, metric, of_plug_ins
from ..stats.intervals import Interval, median_over_repeats
from . import formatting as fmt
from .case_group import CaseGroup
from .report_row import FIDELITY, MASKED, OUTSIDE, QUALITY, ReportRow, by_definition, exactly

NO_INTERVAL, BY_DEFINITION = "no interval", "by definition"
_UNITS_IN_HEADINGS = ("token/s", "dB", "nat/token")  # units that a value of a table does not show


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


@dataclass(frozen=True)
class Column:
    """One column, everywhere it appears.

    ``key`` is the name of a metric or of a derived value, and the name in exports; ``title`` the heading and ``tip`` its tooltip. ``value``
    gives the value of a row with its interval, or None, for which ``missing`` states the reason. ``under`` and ``delta`` are the small
    lines of a cell. ``counted`` values are exact and ``timed`` ones come from a clock. A derived value needs ``unit`` and ``better``
    (lower or higher) and may have its own ``write`` and ``write_end``; those of a metric follow from the metric.
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
    unit: str = ""
    better: str = ""
    write: Callable[[float], str] | None = None
    write_end: Callable[[float], str] | None = None

    def __post_init__(self) -> None:
        if is_metric(self.key):
            about = metric(self.key)
            for name, default in (("unit", about.unit), ("better", about.better), ("write", lambda value: fmt.figure(value, self.key))):
                object.__setattr__(self, name, getattr(self, name) or default)

    @property
    def derived(self) -> bool:
        """True for a value that is computed from metrics, for each row beside the full cache."""
        return not is_metric(self.key)

    @property
    def of_images(self) -> bool:
        """True for a metric of fidelity or quality."""
        return not self.derived and metric(self.key).kind in ("fidelity", "quality")

    @property
    def per_image(self) -> bool:
        """True for a metric that single images have."""
        return self.key in FIDELITY or self.key in QUALITY or self.key in OUTSIDE

    @property
    def heading(self) -> str:
        """The title for documents, with the unit where values do not show it."""
        return f"{self.title}, {self.unit}" if self.unit in _UNITS_IN_HEADINGS else self.title

    def text(self, value: float) -> str:
        """A value in its unit."""
        assert self.write is not None, "a derived column states how its values are written"
        return self.write(value)

    def interval(self, row: ReportRow) -> Interval | None:
        """The interval of a measured value; None for counted values and where there is no value."""
        return None if self.counted or (self.derived and row.case.role == "baseline") else self.value(row)

    def cell(self, row: ReportRow) -> TableCell:
        """The cell of a row, empty where it has no value."""
        value = self.value(row)
        if value is None:
            return TableCell(self.key, self.empty(row), empty=True)
        return TableCell(self.key, self.text(value.value), self.under(row), value.value, delta=self.delta(row))

    def reason(self, row: ReportRow) -> str:
        """The reason why a row with results has no value in this column."""
        if not self.of_images and not row.timed:
            return "References for fidelity are not timed, and their bytes are not compared."
        if row.case.role == "baseline" and (self.key == "saving" or self.key in FIDELITY):
            return "The other rows are compared with it."
        return self.missing(row) or (row.no_judgement if self.of_images else "") or "Not measured."


@dataclass(frozen=True)
class ColumnGroup:
    """Columns under one heading. Fidelity and quality are two groups and share no column."""

    title: str
    tip: str
    columns: tuple[Column, ...]


# -- speed ------------------------------------------------------------------------------------------------------------
def _speed_up(row: ReportRow) -> Interval | None:
    return exactly(1.0) if row.case.role == "baseline" else row.speed_up


def _speed_up_ends(row: ReportRow) -> str:
    if row.case.role == "baseline" or row.speed_up is None:
        return BY_DEFINITION
    repeats = len(row.outcome.raw("latency"))
    alone = NO_INTERVAL if repeats > 1 else "one repeat" if repeats else "medians alone: raw values pruned"
    return f"{row.speed_up.low:.2f}–{row.speed_up.high:.2f}" if row.speed_up.stated else alone


def _latency(row: ReportRow) -> Interval | None:
    return None if row.median("latency") is None else median_over_repeats(row.outcome.repeats("latency"))


def _repeats(row: ReportRow) -> str:
    repeats = len(row.outcome.raw("latency"))
    return f"n = {repeats}" if repeats else "median alone: raw values pruned"


# -- memory and computation -------------------------------------------------------------------------------------------
def _counted(value: float | None) -> Interval | None:
    return None if value is None else exactly(value)


def _saving(row: ReportRow) -> Interval | None:
    return None if row.case.role == "baseline" else _counted(row.saving)


def _prefixed(prefix: str, value: float | None, write: Callable[[float], str]) -> str:
    return "" if value is None else f"{prefix} {write(value)}"


def median_column(name: str, title: str, tip: str, under: Callable[[ReportRow], str] = lambda row: "") -> Column:
    """A column for the median of a counted metric."""
    return Column(name, title, tip, lambda row: _counted(row.median(name)), under, counted=True)


# -- images -----------------------------------------------------------------------------------------------------------
def image_column(name: str) -> Column:
    """A column for the mean over seeds of a metric of fidelity or quality, with its interval and that of its difference to the full
    cache's at the same seeds."""
    about = metric(name)

    def mean(row: ReportRow) -> Interval | None:
        return row.fidelity.get(name) or row.quality.get(name)

    def under(row: ReportRow) -> str:
        value = mean(row)
        if value is None or by_definition(row.case, name):
            return BY_DEFINITION
        if value.n < 2:
            return "one seed" if row.outcome.raw(name) else "mean alone: raw values pruned"
        return "–".join(_ends(value, name)) if value.stated else NO_INTERVAL

    def delta(row: ReportRow) -> str:
        value, to_full = mean(row), row.to_full.get(name)
        if value is None or value.n < 2 or by_definition(row.case, name) or to_full is None or not to_full.stated:
            return ""
        signed = (text if end < 0 else f"+{text}" for text, end in zip(_ends(to_full, name), (to_full.low, to_full.high), strict=True))
        return f"Δ {' to '.join(signed)}"

    def empty(row: ReportRow) -> str:
        return "other images" if row.same_law and name in FIDELITY else fmt.DASH

    title = about.heading or about.title.replace(", ", " ").removesuffix(" images")
    return Column(name, title, about.tip or about.meaning, mean, under, delta, empty=empty)


def _ends(interval: Interval, name: str) -> list[str]:
    return [fmt.figure(end, name).removesuffix(" %") for end in (interval.low, interval.high)]


# -- the table --------------------------------------------------------------------------------------------------------
SAVING_LIVE = Column("saving_live", "Live saving", "1 − live bytes / live bytes of the full cache.", lambda row: _counted(row.saving_live),
                     counted=True, unit="share", better="higher", write=fmt.percent)
SAVING = Column("saving", "Saving", "1 − allocated bytes / allocated bytes of the full cache; below it, the same for live bytes.", _saving,
                lambda row: _prefixed("live", row.saving_live, fmt.percent),
                counted=True, unit="share", better="higher", write=fmt.percent)
SPEED = ColumnGroup("Speed", "against the full cache", (
    Column("speed_up", "Speed-up", "Median latency of the full cache, timed in turns with the method, / median latency of the method.",
           _speed_up, _speed_up_ends, missing=lambda row: row.no_speed_up,
           timed=True, unit="×", better="higher", write=fmt.times, write_end="{:.2f}".format),
    Column("latency", "Latency", "Median wall time of one batch, image decoding included.", _latency, _repeats,
           empty=lambda row: "not timed", timed=True),
))
MEMORY = ColumnGroup("KV memory", "both CFG rows", (
    SAVING,
    median_column("kv_logical", "Live", "Bytes of live keys and values at the fullest step; below it, the bytes allocated.",
                  lambda row: _prefixed("of", row.median("kv_allocated"), fmt.size)),
    median_column("kv_state", "State", "Bytes of everything else the method keeps."),
))
COMPUTATION = ColumnGroup("Computation", "both CFG rows; without a cache nothing is kept", (
    replace(SAVING, tip="1 − FLOPs of an image / FLOPs without a cache."),
    median_column("flops", "FLOPs", "Of one image: matrix products and attention, image decoding left out."),
    Column("added", "Bytes added", "Everything the method keeps between passes; below it, the keys and values alone.",
           lambda row: _counted(row.kept), lambda row: _prefixed("KV", row.median("kv_allocated") or None, fmt.size),
           counted=True, unit="B", better="lower", write=fmt.size),
))


def column_groups(group: CaseGroup) -> tuple[ColumnGroup, ...]:
    """The columns of a group's table. A masked model, whose full form keeps nothing, has computation in the place of KV memory."""
    masked = group.paradigm == MASKED
    measured = {name for row in group.rows for name in (*row.fidelity, *row.quality)}
    sampled = {name for row in group.rows for name in row.outcome.samples}
    sets = (value[0] for base in FAMILIES if FAMILIES[base].column for value in _first_of_set(group, base))
    fidelity = ColumnGroup("Fidelity", f"to the full {'model' if masked else 'cache'} at the same seeds",
                           tuple(map(image_column, (*_of_kind("fidelity", measured, masked), *of_plug_ins(measured, "fidelity")))))
    quality = ColumnGroup("Quality", "of the images alone", tuple(map(image_column, (
        *_of_kind("quality", measured, masked), *of_plug_ins(measured, "quality"), *sets))))
    return (_with_costs(SPEED, sampled, "speed"), _with_costs(COMPUTATION if masked else MEMORY, sampled, "memory", "work"),
            fidelity, quality)


def _of_kind(kind: str, measured: set[str], masked: bool) -> Iterator[str]:
    """The package's metrics of a group of which the table has a column: those that are measured, and those that every plan measures, except
    where prompts replace the color consistency."""
    prompted = any(METRICS[name].prompted for name in measured if name in METRICS)
    for name, about in METRICS.items():
        fits = about.kind == kind and about.column and about.tokens in ("", "vectors" if masked else "indices")
        replaced = prompted and about.of_model and not about.prompted
        if fits and not replaced and (name in measured or not about.asked):
            yield name


def _first_of_set(group: CaseGroup, base: str) -> list[tuple[str, Interval]]:
    return [value for row in group.rows if (value := row.of_set(base))][:1]


def _with_costs(group: ColumnGroup, sampled: set[str], *kinds: str) -> ColumnGroup:
    """A group with a column for each cost that a plug-in measures."""
    names = [name for kind in kinds for name in of_plug_ins(sampled, kind)]
    more = (median_column(name, metric(name).title, metric(name).meaning) for name in names)
    return replace(group, columns=(*group.columns, *more))


def columns_of(groups: Iterable[ColumnGroup]) -> tuple[Column, ...]:
    """The columns of all groups."""
    return tuple(column for group in groups for column in group.columns)


def derived_columns(group: CaseGroup) -> tuple[Column, ...]:
    """Columns of values that are no metrics, for exports of every value."""
    columns = {column.key: column for column in (*columns_of(column_groups(group)), SAVING_LIVE) if column.derived}
    return tuple(columns.values())
