"""Figures for papers: every chart, as wide as asked, readable in grey, and with harmless names."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from cachemark.analysis.report_view import ReportView, build
from cachemark.core.errors import CachemarkError, NothingMeasured, UnknownName
from cachemark.core.formatting import display_name
from cachemark.export import figures
from cachemark.report.page.render import chart_sets
from report import report_sample as sample

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def view() -> ReportView:
    return build(sample.RUN, sample.outcomes())


def test_every_chart_is_written_once(view: ReportView, tmp_path: Path) -> None:
    written = figures.write(view, tmp_path / "new", width="3.25in")
    charts = [chart for chart in chart_sets(view)[0].charts if chart.plot]
    assert len(written) == len(charts) == len({path.name for path in written})
    assert "tiny-llamagen-fidelity-against-memory.svg" in {path.name for path in written}
    assert {ET.fromstring(path.read_bytes()).get("width") for path in written} == {"234.00pt"}


def test_methods_differ_in_shape_and_dash_not_in_colour_alone(view: ReportView) -> None:
    drawing = chart_sets(view)[0]
    svg = figures.figure(drawing.on_tab("leaderboard")[0], drawing, 234.0)
    shapes = set(re.findall(r'<path d="([^"]+)" transform="translate\([^"]*\)" fill', svg))
    assert len(shapes) == len(sample.METHODS)
    lines = re.findall(r'<path d="M[^"]*" stroke="(#[0-9A-F]{6})"( stroke-dasharray="[^"]+")? class="s\d+" opacity', svg)
    assert len(lines) == len(sample.METHODS)
    assert len({dash for _, dash in lines}) == 4
    assert "currentColor" not in svg
    assert [e.text for e in ET.fromstring(svg).findall(f"{SVG}text")] == [display_name(name) for name in sorted(sample.METHODS)]


def test_widths_are_lengths() -> None:
    assert [figures.points(width) for width in ("3.25in", "234 pt", "8.255cm", "82.55mm")] == [pytest.approx(234.0)] * 4
    for wrong in ("3.25", "wide", "-3in", "1in", "1000in", "3.25in; rm"):
        with pytest.raises(CachemarkError, match="cannot be"):
            figures.points(wrong)


EVIL = [sample.SCRIPTS + sample.BREAKERS, "\u202eturned\u2066", "😀" * 40, "A" * 10_000, "../../x", "nul\x00 \ud800"]


@pytest.mark.parametrize("evil", EVIL, ids=lambda e: ascii(e[:8]))
def test_hostile_names_are_harmless_in_drawings_and_file_names(evil: str, tmp_path: Path) -> None:
    results = [replace(o, case=replace(o.case, model=evil, method=evil if o.case.role == "candidate" else "full"))
            for o in (sample.full(), sample.candidate("linear", "1/4"), sample.candidate("linear", "1/2"))]
    written = figures.write(build(sample.RUN, results), tmp_path)
    assert written
    for path in written:
        assert path.parent == tmp_path
        assert re.fullmatch(r"[a-z0-9-]{1,140}\.svg", path.name)
        tags = {e.tag.removeprefix(SVG) for e in ET.fromstring(path.read_bytes()).iter()}
        assert tags <= {"svg", "path", "text", "rect", "g"}


TILE, FIXED = 64, 4


def rows(png: bytes) -> list[bytes]:
    """The pixels of each row of tiles, without the names."""
    with Image.open(io.BytesIO(png)) as image:
        remaining = image.width - FIXED * TILE
        assert remaining > TILE, "there is room for names"
        assert image.crop((0, 0, remaining, image.height)).getcolors(2) is None, "and they are drawn"
        return [image.crop((remaining, top, image.width, top + TILE)).tobytes() for top in range(0, image.height, TILE)]


def test_the_full_cache_stands_above_each_case_at_the_fixed_seeds() -> None:
    result = rows(figures.grid(sample.outcomes(), sample.sprite, ["linear 1/4", "window 1/4"]))
    assert len(result) == 3
    with Image.open(io.BytesIO(sample.sprite("linear-1/4"))) as image:
        full, linear = (image.crop((8 * TILE, top, 12 * TILE, top + TILE)).tobytes() for top in (0, TILE))
    assert result[0] in (full, *[rows(figures.grid(sample.outcomes(), sample.sprite, ["window 1/4"]))[0]])
    assert linear in result[1:]


@pytest.mark.parametrize(("cases", "model", "said"), [(["linear 1/8"], None, "Unknown case"), ([], "tiny-vra", "Unknown model")])
def test_a_wrong_name_is_refused(cases: list[str], model: str | None, said: str) -> None:
    with pytest.raises(UnknownName, match=said):
        figures.grid(sample.outcomes(), sample.sprite, cases, model)


def test_two_models_need_a_name() -> None:
    other = [replace(o, case=replace(o.case, model="another")) for o in sample.outcomes()]
    pair = [*sample.outcomes(), *other]
    with pytest.raises(UnknownName, match="several models: tiny-llamagen, another"):
        figures.grid(pair, sample.sprite, ["linear 1/4"])
    assert len(rows(figures.grid(pair, sample.sprite, ["linear 1/4"], "another"))) == 2


def test_without_pictures_there_is_no_grid() -> None:
    with pytest.raises(NothingMeasured, match="No pictures"):
        figures.grid(sample.random_weights(), sample.sprite)
