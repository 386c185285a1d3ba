"""Flowcharts in mermaid syntax as SVG, drawn when the site is built so that no script is loaded."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

WIDTH, HEIGHT, ACROSS, DOWN = 88, 26, 108, 64  # of a box, and from one box to the next; px
_NAMES = re.compile(r"\s*&\s*")


def fence(source: str, *_: object, **__: object) -> str:
    """Format a block of code for superfences."""
    return svg(edges(source))


def edges(source: str) -> list[tuple[str, str]]:
    """Return the edges of a ``flowchart TD`` with lines like ``a --> b & c``; raise ValueError otherwise."""
    head, *lines = (line.strip() for line in source.strip().splitlines())
    if head != "flowchart TD":
        raise ValueError(f"this draws 'flowchart TD' and no {head!r}")
    return [edge for line in lines if line for edge in _edges(line)]


def _edges(line: str) -> Iterator[tuple[str, str]]:
    groups = [_NAMES.split(group.strip()) for group in line.split("-->")]
    if len(groups) < 2 or not all(re.fullmatch(r"\w+", name) for group in groups for name in group):
        raise ValueError(f"this draws 'a --> b & c' and no {line!r}")
    for above, below in pairwise(groups):
        yield from product(above, below)


def rows(found: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return nodes by their longest path from a root; rows are ordered by the position of their parents."""
    above: dict[str, list[str]] = {}
    for start, end in found:
        above.setdefault(start, [])
        above.setdefault(end, []).append(start)
    level = dict.fromkeys(above, 0)
    for _ in above:
        level = {node: 1 + max((level[parent] for parent in above[node]), default=-1) for node in above}
    if max(level.values()) >= len(above):
        raise ValueError("the arrows lead round in a circle")
    made: list[list[str]] = [[node for node in above if level[node] == row] for row in range(1 + max(level.values()))]
    place: dict[str, float] = {}
    for row in made:
        row.sort(key=lambda node: sum(place[parent] for parent in above[node]) / (len(above[node]) or 1))
        place |= {node: at - (len(row) - 1) / 2 for at, node in enumerate(row)}
    return made


def svg(found: Sequence[tuple[str, str]]) -> str:
    """Return the drawing as SVG in the colors of the page."""
    made = rows(found)
    width, height = max(map(len, made)) * ACROSS, (len(made) - 1) * DOWN + HEIGHT + 8
    at = {node: (round(width / 2 + (column - (len(row) - 1) / 2) * ACROSS), 4 + line * DOWN)
          for line, row in enumerate(made) for column, node in enumerate(row)}
    text = html.escape("; ".join(f"{start} to {end}" for start, end in found))
    arrows = "".join(_arrow(*at[start], *at[end]) for start, end in found)
    boxes = "".join(f'<rect x="{x - WIDTH / 2:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
                    f'<text x="{x}" y="{y + HEIGHT / 2:g}">{html.escape(node)}</text>' for node, (x, y) in at.items())
    return (f'<svg class="diagram" viewBox="0 0 {width} {height}" role="img"><title>{text}</title>'
            f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z"/></marker></defs>{arrows}{boxes}</svg>')


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    start, end = y + HEIGHT, to_y - 1
    bend = min(DOWN / 2, (end - start) / 2)
    return f'<path class="arrow" marker-end="url(#arrow)" d="M{x} {start}C{x} {start + bend:g} {to_x} {end - bend:g} {to_x} {end}"/>'
