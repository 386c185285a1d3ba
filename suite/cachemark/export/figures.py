"""Figures for papers: charts of the report as SVG, and grids of images as PNG.

A grid has one row per method below the full cache, at the same seeds. In charts, methods differ in color, shape and dash, so that they are
readable in gray. Unranked cases are hollow.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from PIL import Image, ImageDraw, ImageFont

from ..analysis.case_group import case_groups
from ..analysis.image_albums import Strip, albums, strip
from ..analysis.report_view import ReportView
from ..core import formatting as fmt
from ..core.errors import CachemarkError, NothingMeasured, UnknownName, Unsupported, unknown
from ..core.files import output
from ..core.result import Outcome
from ..core.spec import shown_label
from ..core.wording import on_one_line
from ..report.charts.chart import Chart, ChartSet, Plot
from ..report.charts.svg import SHAPES, Curve, RowPlot, Style, XYPlot
from ..report.page.render import chart_sets
from .escape import slug

FAMILY = "Liberation Sans, Arial, Helvetica, sans-serif"
_POINTS = {"in": 72.0, "cm": 72 / 2.54, "mm": 72 / 25.4, "pt": 1.0}
_SIZE = 8.0  # of letters, in points
_DASHES = ("", "5 2", "2 2", "6 2 2 2")
_INK = "#111111"
KINDS = {"svg": "figure", "pdf": "PDF figure", "png": "PNG image"}  # of :mod:`core.files`
DOTS = 300  # per inch of a PNG
NAME = 28  # characters of a name next to images


def points(width: str) -> float:
    """Return a width such as ``3.25in``, ``8cm``, ``82mm`` or ``234pt`` in points. Raises CachemarkError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(in|cm|mm|pt)\s*", width)
    size = float(match[1]) * _POINTS[match[2]] if match else 0.0
    if not 100 <= size <= 2000:
        raise CachemarkError(f"The width of a chart cannot be {width!r}.",
                             remedy="Use a width of 1.4 to 27 inches, such as 3.25in, 8.2cm or 234pt.")
    return size


def write(view: ReportView, folder: Path, width: str = "3.25in", kind: str = "svg") -> list[Path]:
    """Write every chart of a page as ``svg``, ``pdf`` or ``png`` (300 dots per inch); return the paths.

    Raises Unsupported for pdf and png without the extra ``plots``.
    """
    wide, written, taken = points(width), [], Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)
    for chapter, charts in zip(view.chapters, chart_sets(view), strict=True):
        for chart in charts.charts:
            if chart.plot is None:
                continue
            stem = f"{_slug(chapter.heading)}-{_slug(chart.title)}"
            taken[stem] += 1
            name = stem if taken[stem] == 1 else f"{stem}-{taken[stem]}"
            written.append(folder / f"{name}.{kind}")
            with output(written[-1], KINDS[kind]) as part:
                part.write_bytes(converted(figure(chart, charts, wide), kind))
    return written


def converted(svg: str, kind: str) -> bytes:
    """Return an SVG as a file of this kind. Raises Unsupported without vl-convert, for pdf and png."""
    if kind == "svg":
        return svg.encode("utf-8", errors="replace")
    try:
        import vl_convert
    except ImportError:
        raise Unsupported(f"Figures as {kind} need vl-convert.", remedy="Install it: pip install 'cachemark[plots]'.") from None
    return bytes(vl_convert.svg_to_pdf(svg) if kind == "pdf" else vl_convert.svg_to_png(svg, scale=DOTS / 96))


def figure(chart: Chart, charts: ChartSet, width: float) -> str:
    """Return one chart as SVG, ``width`` points wide, with its legend below."""
    plot = _for_paper(chart.plot, charts)
    style = Style(width, 0.74 * width, _SIZE, _INK, FAMILY, tips=False)
    inner = plot.svg(chart.title, style).replace("currentColor", _INK)
    match = re.search(r'viewBox="0 0 \S+ (\S+)"', inner)
    assert match is not None
    shapes = tuple(SHAPES.values())
    used = {point.series for point in plot.points} if isinstance(plot, XYPlot) else set()
    signs = [(key.name, shapes[key.index % len(shapes)], f'fill="{key.sign}"') for key in charts.methods if key.index in used]
    if isinstance(plot, RowPlot):
        signs = [(name, SHAPES["square"], f'fill="{_INK}" fill-opacity="{opacity:g}"') for name, opacity in plot.parts]
    legend, high = _legend(signs, width, float(match[1]))
    nested = inner.replace("<svg ", f'<svg width="{width:.0f}" height="{match[1]}" ', 1)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.2f}pt" height="{high:.0f}pt" viewBox="0 0 {width:.2f} {high:.0f}" '
            f'font-family={quoteattr(FAMILY)} font-size="{_SIZE:g}">{nested}{legend}</svg>')


def _for_paper(plot: Plot | None, charts: ChartSet) -> XYPlot | RowPlot:
    if isinstance(plot, RowPlot):
        return replace(plot, pitch=11.0)
    assert isinstance(plot, XYPlot)
    shapes = tuple(SHAPES)
    marks = tuple(replace(p, shape=shapes[p.series % len(shapes)] if p.series >= 0 else p.shape) for p in plot.points)
    drawn = {line.series for line in plot.lines if line.series >= 0}
    joined = []
    for key in charts.methods:
        places = tuple(sorted((p.x, p.y) for p in plot.points if p.series == key.index))
        if key.index not in drawn and len(places) > 1:
            joined.append(Curve(places, key.sign, _DASHES[key.index % len(_DASHES)], key.index))
    lines = [replace(line, dash=_DASHES[line.series % len(_DASHES)]) if line.series >= 0 else line for line in plot.lines]
    return replace(plot, points=marks, lines=(*lines, *joined))


def _legend(signs: Sequence[tuple[str, str, str]], width: float, top: float) -> tuple[str, float]:
    """Return a legend below ``top``, and its lower end; ``signs``: name, path and color."""
    parts, x, y = [], 4.0, top + _SIZE
    for long_name, path, color in signs:
        name = fmt.plain(long_name, 28)
        need = 14 + 0.56 * _SIZE * len(name) + 8
        if x + need > width and x > 4:
            x, y = 4.0, y + 1.5 * _SIZE
        parts.append(f'<path d="{path}" transform="translate({x + 5:.1f} {y - 0.35 * _SIZE:.1f}) scale(.8)" '
                     f'{color}/><text x="{x + 13:.1f}" y="{y:.1f}" fill="{_INK}">{escape(name)}</text>')
        x += need
    return "".join(parts), (y + 0.6 * _SIZE) if parts else top


def _slug(text: str) -> str:
    return slug(text.replace("_", "-")).lower() or "figure"


# -- images -----------------------------------------------------------------------------------------------------------
def grid(
    outcomes: Sequence[Outcome], artifact: Callable[[str], bytes], cases: Sequence[str] = (), model: str | None = None, scale: int = 1,
) -> bytes:
    """Return a PNG of the full cache and ``cases`` by label or printed title (default: all), in that order.

    ``scale``: pixels per pixel of an image. ``artifact`` reads a stored file. Raises UnknownName, and NothingMeasured without images.
    """
    groups = case_groups(outcomes)
    if model is not None and model not in (models := [group.model for group in groups]):
        raise unknown("model", model, models)
    mine = [group for group in groups if model in (None, group.model)]
    labels = dict.fromkeys(row.case.label for group in mine for row in group.candidates)
    titles = {row.label: row.case.label for group in mine for row in group.candidates}  # as reports and grids print them
    cases = [titles.get(shown_label(case), shown_label(case)) for case in cases]
    if wrong := next((label for label in cases if label not in labels), ""):
        raise unknown("case", wrong, labels)
    order = {label: number for number, label in enumerate(cases)}
    chosen = [(group, sorted((row for row in group.candidates if not cases or row.case.label in cases),
                             key=lambda row: order.get(row.case.label, 0))) for group in mine]
    drawn = {group.model: strip_ for group, rows in chosen if rows and (strip_ := strip(albums(group, artifact), rows))}
    if not drawn:
        raise NothingMeasured("No pictures of these cases were kept, or they differ in size.",
                              remedy="Pass other cases; there are no images of random weights.")
    if len(drawn) > 1:
        raise UnknownName(f"These cases are of several models: {', '.join(drawn)}.", remedy="Name one with --model.")
    return _named(next(iter(drawn.values())), scale)


def _named(strip_: Strip, scale: int) -> bytes:
    names = [on_one_line(name, NAME) for name in strip_.names]
    tile = scale * strip_.tile
    size = max(9, tile // 5)
    font = ImageFont.load_default(size)
    margin = int(max(font.getlength(name) for name in names)) + size
    with Image.open(io.BytesIO(strip_.png), formats=["PNG"]) as stored:
        image = stored.resize((scale * stored.width, scale * stored.height), Image.Resampling.NEAREST)
        sheet = Image.new("RGB", (margin + image.width, image.height), "white")
        sheet.paste(image, (margin, 0))
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        pen.text((size // 2, (row + 0.5) * tile), name, fill="black", font=font, anchor="lm")
    written = io.BytesIO()
    sheet.save(written, format="PNG", optimize=True)
    return written.getvalue()
