"""SVG drawings: two axes with marks, and rows with bars.

Hand-written for speed (a page has hundreds of drawings at about 1 ms each); they need no script and follow the page's theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from ...core import formatting as fmt

_SVG = "http://www.w3.org/2000/svg"
_WIDE = 0.56  # of the size of a letter: how wide one is on average
SHAPES = {
    "circle": "M5 0A5 5 0 1 1 -5 0A5 5 0 1 1 5 0Z", "square": "M-4.5-4.5H4.5V4.5H-4.5Z", "triangle": "M0-5.6L5.2 4.2H-5.2Z",
    "diamond": "M0-6L5 0L0 6L-5 0Z", "wedge": "M0 5.6L5.2-4.2H-5.2Z", "plus": "M-1.8-5.4H1.8V-1.8H5.4V1.8H1.8V5.4H-1.8V1.8H-5.4V-1.8H-1.8Z",
}


@dataclass(frozen=True)
class Style:
    """Size of a drawing in its own units; ``size`` is the font size."""

    width: float = 400.0
    height: float = 300.0
    size: float = 11.0
    ink: str = "currentColor"
    family: str = "sans-serif"
    tips: bool = True  # tooltips of marks; a printed chart has none


PAGE = Style()


@dataclass(frozen=True)
class Axis:
    """Axis with labeled ``ticks``; ``root`` is a square-root scale."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    root: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, from 0 (low end) to 1 (high end)."""
        if self.root:
            return math.sqrt(max(value, 0.0) / self.high)
        return (value - self.low) / (self.high - self.low)


def linear(title: str, low: float, high: float, *, count: int = 5) -> Axis:
    """Return a linear axis with about ``count`` round ticks."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = (round(k * step, 12) for k in range(first, last + 1))
    return Axis(title, low, high, tuple((tick, f"{tick:g}") for tick in ticks))


def rooted(title: str, top: float) -> Axis:
    """Return a square-root axis from 0 with evenly spread ticks."""
    top = top or 1e-6
    ticks = [float(f"{top * (k / 5) ** 2:.1g}") for k in range(1, 6)]
    places = [0.0, *dict.fromkeys(value for value in ticks if value <= 1.06 * top)]
    return Axis(f"{title}, √ scale", 0.0, 1.06 * top, tuple((place, f"{place:g}") for place in places), root=True)


def ranged(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Return the range of all values plus a margin."""
    low, high = min(values), max(values)
    more = share * ((high - low) or abs(high) or 1.0)
    return low - more, high + more


@dataclass(frozen=True)
class Point:
    """Mark at (``x``, ``y``) with its intervals; ``series`` is its legend entry, −1 for none."""

    x: float
    y: float
    color: str
    tip: str
    series: int = -1
    shape: str = "circle"
    across: tuple[float, float] | None = None
    up: tuple[float, float] | None = None
    hollow: bool = False
    name: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Curve:
    """Line through points; ``stepped`` (``after``, ``before``) makes it a staircase."""

    places: tuple[tuple[float, float], ...]
    color: str = ""
    dash: str = ""
    series: int = -1
    stepped: str = ""


@dataclass(frozen=True)
class XYPlot:
    """Points and lines between two axes."""

    x: Axis
    y: Axis
    points: tuple[Point, ...]
    lines: tuple[Curve, ...] = ()

    def svg(self, title: str, style: Style = PAGE) -> str:
        margin = style.size * (2.6 + _WIDE * max((len(text) for _, text in self.y.ticks), default=0))
        box = _Box(margin, style.size * 0.8, style.width - style.size * 0.9, style.height - 3.6 * style.size)
        parts = [*_down(self.y, box, style), *_across(self.x, box, style)]
        parts += [_svg_curve(line, self, box, style) for line in self.lines]
        parts += [_ends(point, self, box) for point in self.points]
        parts += [_mark(point, self, box, style) for point in self.points]
        return _sheet(parts, title, style.width, style.height, style)


@dataclass(frozen=True)
class Span:
    """Bar in the middle of a row from ``low`` to ``high``; ``thick`` is its share of the row's height."""

    row: int
    low: float
    high: float
    color: str
    tip: str
    series: int = -1
    opacity: float = 1.0
    thick: float = 0.7


@dataclass(frozen=True)
class RowPlot:
    """Labeled rows of bars over one axis; ``pitch`` is the height of a row, ``parts`` names the opacities of a stacked bar."""

    labels: tuple[str, ...]
    x: Axis
    spans: tuple[Span, ...]
    pitch: float = 22.0
    lines: tuple[float, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()

    def svg(self, title: str, style: Style = PAGE) -> str:
        labels = [fmt.plain(label, 26) for label in self.labels]
        margin = style.size * (0.9 + _WIDE * max((len(label) for label in labels), default=0))
        bottom = 0.5 * style.size + self.pitch * len(labels)
        box = _Box(margin, 0.5 * style.size, style.width - style.size * 1.2, bottom)
        parts = [*_across(self.x, box, style)]
        for row, label in enumerate(labels):
            parts.append(_label(margin - 0.6 * style.size, box.top + (row + 0.5) * self.pitch + 0.35 * style.size, label, style, "end"))
        for at in self.lines:
            x = box.x(self.x.at(at))
            parts.append(f'<path d="M{x:.1f} {box.top:.1f}V{box.bottom:.1f}" stroke="{style.ink}" stroke-dasharray="4 3" opacity=".6"/>')
        parts += [_span(span, self, box, style) for span in self.spans]
        return _sheet(parts, title, style.width, bottom + 3.6 * style.size, style)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        return self.bottom - share * (self.bottom - self.top)


def _sheet(parts: Iterable[str], title: str, width: float, height: float, style: Style) -> str:
    label = quoteattr(f"{title}; the table below the chart has its values" if style.tips else title)
    return (f'<svg xmlns="{_SVG}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label={label} fill="none" '
            f'font-family={quoteattr(style.family)} font-size="{style.size:g}">{"".join(parts)}</svg>')


def _label(x: float, y: float, text: str, style: Style, anchor: str = "middle", turned: bool = False, weight: str = "") -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{style.ink}"{bold}{turn}>{escape(fmt.plain(text))}</text>'


def _down(axis: Axis, box: _Box, style: Style) -> Iterable[str]:
    for place, text in axis.ticks:
        y = box.y(axis.at(place))
        yield f'<path d="M{box.left:.1f} {y:.1f}H{box.right:.1f}" stroke="{style.ink}" opacity=".13"/>'
        yield _label(box.left - 0.5 * style.size, y + 0.35 * style.size, text, style, "end")
    yield f'<path d="M{box.left:.1f} {box.top:.1f}V{box.bottom:.1f}" stroke="{style.ink}" opacity=".4"/>'
    yield _label(1.1 * style.size, (box.top + box.bottom) / 2, axis.title, style, turned=True)


def _across(axis: Axis, box: _Box, style: Style) -> Iterable[str]:
    free = -math.inf
    for place, text in axis.ticks:
        x, half = box.x(axis.at(place)), _WIDE * style.size * len(text) / 2
        yield f'<path d="M{x:.1f} {box.top:.1f}V{box.bottom:.1f}" stroke="{style.ink}" opacity=".13"/>'
        if x - half > free:
            yield _label(x, box.bottom + 1.4 * style.size, text, style)
            free = x + half + 0.4 * style.size
    yield f'<path d="M{box.left:.1f} {box.bottom:.1f}H{box.right:.1f}" stroke="{style.ink}" opacity=".4"/>'
    yield _label((box.left + box.right) / 2, box.bottom + 3.1 * style.size, axis.title, style)


def _svg_curve(line: Curve, plot: XYPlot, box: _Box, style: Style) -> str:
    places = [(box.x(plot.x.at(x)), box.y(plot.y.at(y))) for x, y in line.places]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" if places else "M0 0"
    for x, y in places[1:]:
        path += {"after": f"H{x:.1f}V{y:.1f}", "before": f"V{y:.1f}H{x:.1f}"}.get(line.stepped, f"L{x:.1f} {y:.1f}")
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    lit = f' class="s{line.series}"' if line.series >= 0 else ""
    return f'<path d="{path}" stroke="{line.color or style.ink}"{dash}{lit} opacity="{".75" if line.color else ".55"}"/>'


def _ends(point: Point, plot: XYPlot, box: _Box) -> str:
    x, y = box.x(plot.x.at(point.x)), box.y(plot.y.at(point.y))
    rules = ""
    if point.across and point.across[0] < point.across[1]:
        rules += f"M{box.x(plot.x.at(point.across[0])):.1f} {y:.1f}H{box.x(plot.x.at(point.across[1])):.1f}"
    if point.up and point.up[0] < point.up[1]:
        rules += f"M{x:.1f} {box.y(plot.y.at(point.up[0])):.1f}V{box.y(plot.y.at(point.up[1])):.1f}"
    return f'<path d="{rules}" stroke="{point.color}" class="s{point.series}" stroke-width="1.3" opacity=".8"/>' if rules else ""


def _mark(point: Point, plot: XYPlot, box: _Box, style: Style) -> str:
    x, y = box.x(plot.x.at(point.x)), box.y(plot.y.at(point.y))
    paint = (f'stroke="{point.color}" stroke-width="1.7" vector-effect="non-scaling-stroke" pointer-events="all"' if point.hollow
             else f'fill="{point.color}"')
    place = f"translate({x:.1f} {y:.1f}){'' if point.scale == 1.0 else f' scale({point.scale:g})'}"
    drawn = f'<path d="{SHAPES[point.shape]}" transform="{place}" {paint}{_mark_end(point.tip, point.series, style, "path")}'
    return drawn + (_label(x, y - 0.9 * style.size, point.name, style, weight="bold") if point.name else "")


def _span(span: Span, plot: RowPlot, box: _Box, style: Style) -> str:
    x, end, high = box.x(plot.x.at(span.low)), box.x(plot.x.at(span.high)), span.thick * plot.pitch
    y = box.top + (span.row + 0.5) * plot.pitch - high / 2
    faint = f' opacity="{span.opacity:g}"' if span.opacity < 1 else ""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 0.6):.1f}" height="{high:.1f}" fill="{span.color}"{faint}'
            f'{_mark_end(span.tip, span.series, style, "rect")}')


def _mark_end(tip: str, series: int, style: Style, tag: str) -> str:
    if not style.tips:
        return "/>"
    return f' data-series="{series}"><title>{escape(fmt.plain(tip))}</title></{tag}>'
