"""The view as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import io
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from ...analysis import columns, explanations
from ...analysis.case_group import CaseGroup
from ...analysis.report_row import display_label
from ...analysis.report_view import ReportView
from ...analysis.run_history import RunHistory
from ...core import formatting as fmt
from ...core.files import output
from ...core.spec import shown_share
from ...core.units import METRICS, OUTSIDE, Metric, in_order, metric, of_plug_ins
from ...core.version import __version__
from ..charts.bars import memory, phases, spreads
from ..charts.chart import ChartSet, signs_of
from ..charts.lines import batches, history, kv_over_time
from ..charts.tradeoffs import against_cost, against_speed, curves

TABS = (
    ("verdict", "Verdict"), ("leaderboard", "Leaderboard"), ("speed", "Speed"), ("memory", "Memory"), ("quality", "Quality"),
    ("history", "History"), ("papers", "Papers"), ("environment", "Environment"), ("missing", "Not measured"), ("cases", "Cases"),
)  # each is a template of that name and a panel of the page with that id
_PICTURES = 400_000  # bytes of PNG that leave a page of one model below 1 MB: base64 adds a third
_JPEG = 92
MANY = 500  # cases, above which a page stores its large panels compressed, and each picture once
_PACKED = 50_000  # characters of a panel that are worth it


class _Pictures(dict[str, int]):
    """Number of each data URI of a page."""

    def source(self, uri: str) -> Markup:
        """Return the attribute that shows a picture."""
        return Markup('data-picture="{}"').format(self.setdefault(uri, len(self)))


def render(view: ReportView) -> str:
    """Return the page; all user text is escaped by the template engine or the SVG writer."""
    script = static("report.js")
    sprites = [sprite for chapter in view.chapters for album in chapter.albums.values() for sprite in album]
    many, pictures = len(view.entries) > MANY, _Pictures()
    source = pictures.source if many else lambda uri: Markup('src="{}"').format(uri)
    return engine().get_template("report.html").render(
        packed=_packed if many else lambda panel: panel, source=source, pictures=pictures,
        view=view, tabs=TABS, explanations=explanations, glossary=explanations.glossary(), chart_sets=chart_sets(view),
        column_groups=columns.column_groups, columns_of=columns.columns_of, limit_columns=columns.LIMITS.columns,
        recommended_columns=columns.RECOMMENDED.columns, in_turns=columns.paired_speed_note,
        exact=sum(len(sprite.png) for sprite in sprites) <= _PICTURES, jpeg=_JPEG,
        raw=_raw, metric=metric, metrics=_metrics(view),
        style=Markup(static("report.css")), script=Markup(script), policy=policy(script), version=__version__,
    )


def _metrics(view: ReportView) -> dict[str, Metric]:
    measured = {name for chapter in view.chapters for row in chapter.group.rows for name in row.outcome.samples}
    return {**METRICS, **{name: metric(name) for name in sorted(measured & OUTSIDE.keys())}}


def chart_sets(view: ReportView) -> list[ChartSet]:
    """Return the charts of each chapter."""
    groups = [chapter.group for chapter in view.chapters]
    return [chart_set(chapter.group, groups, chapter.history) for chapter in view.chapters]


def chart_set(group: CaseGroup, groups: Sequence[CaseGroup] = (), followed: RunHistory | None = None) -> ChartSet:
    """Return the charts of a group; ``groups`` are all groups of the report, ``followed`` its history."""
    signs = signs_of(group, groups)
    charts = (against_cost(group, signs), against_speed(group, signs), *phases(group, signs), *memory(group, signs),
              *kv_over_time(group, signs), *batches(group, groups, signs), *curves(group, signs), *spreads(group, signs),
              *history(followed, signs))
    return ChartSet(tuple(signs.methods.values()), tuple(signs.budgets.values()), charts)


def write(view: ReportView, path: str | Path) -> Path:
    """Write the page to ``path`` in UTF-8, creating its folder, and return the path.

    An existing file must be a page of cachemark; others raise CachemarkError."""
    with output(path, "report") as part:
        part.write_bytes(render(view).encode("utf-8", errors="replace"))
    return Path(path)


@cache
def engine() -> Environment:
    """Return the template engine, which escapes text and removes control characters, and compiles each template once."""
    engine = Environment(loader=PackageLoader("cachemark", "report/templates"), autoescape=True, undefined=StrictUndefined,
                         trim_blocks=True, lstrip_blocks=True, finalize=_clean)
    engine.filters.update(
        plain=fmt.plain, display_name=fmt.display_name, display_label=display_label, shown_share=shown_share, times=fmt.times,
        percent=fmt.percent, seconds=fmt.seconds, with_unit=fmt.with_unit,
        uri=_uri, svg=Markup, in_order=in_order, in_full=lambda values: " ".join(f"{value:.6g}" for value in values),
        cells=columns.cells, budget_cell=columns.budget_cell)
    return engine


def _clean(value: object) -> object:
    return fmt.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def static(name: str) -> str:
    """Return a file of ``static/``."""
    return (resources.files("cachemark.report") / "static" / name).read_text(encoding="utf-8")


def policy(script: str) -> str:
    """Return a content security policy that allows ``script`` and no requests."""
    own = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" if script else "'none'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {own}; base-uri 'none'; form-action 'none'"


def _packed(panel: Markup) -> Markup:
    """Return a panel as compressed data that the script inserts when it is opened."""
    if len(panel) < _PACKED:
        return panel
    data = base64.b64encode(zlib.compress(panel.encode("utf-8", errors="replace"), 4)).decode()
    return Markup('<p class="none">This part needs JavaScript.</p><script type="text/plain" class="packed">{}</script>').format(data)


@lru_cache(maxsize=64)
def _uri(png: bytes, exact: bool) -> str:
    """Return an image as a data URI: the stored PNG, or a JPEG of a third of its size."""
    if exact:
        return "data:image/png;base64," + base64.b64encode(png).decode()
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(small, format="JPEG", quality=_JPEG, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(small.getvalue()).decode()


def _raw(group: CaseGroup, kinds: Sequence[str]) -> tuple[str, ...]:
    measured = {name for row in group.rows for name in row.outcome.samples}
    ours = (name for name, of in METRICS.items() if of.kind in kinds and name in measured)
    return (*ours, *(name for kind in kinds for name in of_plug_ins(measured, kind)))
