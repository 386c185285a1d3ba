"""Frames: every case, metric and raw value is there, with the report's own values."""

import io
import re
import statistics
import xml.etree.ElementTree as ET
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from cachemark.analysis.report_view import ReportView, build
from cachemark.core.errors import UnknownName
from cachemark.core.formatting import display_name
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS
from cachemark.export import figures
from cachemark.export.frames import frame, samples_frame
from cachemark.export.records import COLUMNS, csv_lines, settings
from cachemark.report.page.render import chart_sets
from cachemark.store.db import Store
from report import report_sample as sample

SVG = "{http://www.w3.org/2000/svg}"
TILE, FIXED = 64, 4


def figure(table: pd.DataFrame, label: str, metric: str) -> dict[str, Any]:
    (row,) = table[(table.label == label) & (table.metric == metric)].to_dict("records")
    return dict(row)


def test_there_is_one_row_for_each_case_and_metric_with_the_value_of_the_report() -> None:
    table = frame(sample.outcomes())
    assert tuple(table.columns) == COLUMNS
    measured = table[table.kind != "derived"]
    assert sorted(zip(measured.case, measured.metric, strict=True)) == sorted((o.case.key, m) for o in sample.outcomes() for m in o.samples)
    candidates = [o.case.key for o in sample.outcomes() if o.case.role == "candidate"]
    assert sorted(table[table.metric == "saving"].case) == sorted(candidates)
    assert len(table[table.metric == "speedup"]) == len(candidates) - 4  # h2o and rkv are judged for quality only
    for samples, table in ((False, frame(sample.mixed())), (True, samples_frame(sample.mixed()))):
        assert "".join(csv_lines(sample.mixed(), samples=samples)) == table.to_csv(index=False, lineterminator="\n")
    for metric, value in (("latency", statistics.median), ("kl", statistics.fmean), ("color_consistency", statistics.fmean)):
        raw = sample.candidate("linear", "1/4").samples[metric]
        row = figure(frame(sample.outcomes()), "linear 1/4", metric)
        assert row["value"] == pytest.approx(value(raw), rel=1e-12)
        assert (row["mean"], row["median"]) == pytest.approx((statistics.fmean(raw), statistics.median(raw)), rel=1e-12)
        assert min(raw) <= row["low"] < row["value"] < row["high"] <= max(raw)
        assert (row["n"], row["unit"], row["better"], row["kind"], row["version"]) == (
            len(raw), METRICS[metric].unit, METRICS[metric].better, METRICS[metric].kind, METRICS[metric].version)


def test_what_has_no_figures_is_there_with_its_reason() -> None:
    table = frame(sample.mixed())
    failed = table[table.metric.isna()].set_index("label")
    assert dict(failed.status) == {"rkv 1/4": "oom", "h2o 1/4": "unsupported"}
    assert failed.reason["rkv 1/4"] == "MemoryError: 4.1 GiB wanted"
    assert "different-seed" in figure(table, "window 1/4", "speedup")["not_ranked"]
    assert "5 points of color consistency" in figure(table, "linear 1/4", "speedup")["not_ranked"]
    assert figure(table, "linear 1/2", "speedup")["not_ranked"] == ""
    table, raw = frame(sample.random_weights()), samples_frame(sample.random_weights())
    assert set(table.kind.dropna()) == {"speed", "memory", "derived"}
    assert set(table[table.metric.isna()].label) == {"full (other seeds)", "full (other batch)"}  # of which nothing is left
    assert set(table.reason) == {"Weights are random: images are noise."}
    assert {"fidelity", "quality"} <= set(raw.kind)
    assert set(raw.judgement) == {"Weights are random: images are noise."}


def test_a_store_its_path_and_outcomes_give_the_same(tmp_path: Path) -> None:
    with Store.open(path := tmp_path / "s.sqlite") as store:
        for values in (sample.outcomes(), [sample.full()]):
            run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
            for outcome in values:
                store.save(run, replace(outcome, artifacts={}))
    shared = ["run", "commit", "machine_class"]
    arguments = frame(sample.outcomes()).drop(columns=shared)
    with Store.open(path, read_only=True) as store:
        pd.testing.assert_frame_equal(frame(store, 1).drop(columns=shared), arguments)
        assert set(frame(store).run) == {2}
    rows = frame(path, 1)
    pd.testing.assert_frame_equal(rows.drop(columns=shared), arguments)
    assert {(r, c, m) for r, c, m in zip(rows.run, rows["commit"], rows.machine_class, strict=True)} == {
        (1, sample.RUN.code["commit"], "cpu-example-8")}
    assert set(samples_frame(str(path)).run) == {2}


def other(value: Any) -> Any:
    if isinstance(value, tuple):
        return (value[0] + 1, *value[1:])
    return {**value, "x": 1} if isinstance(value, dict) else f"{value}x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", [f.name for f in fields(Case)])
def test_every_field_of_a_case_is_a_column(name: str) -> None:
    case = sample.case(parameters={"a": 1})
    if name == "sampling":
        for inner in fields(Sampling):
            changed = replace(case, sampling=replace(case.sampling, **{inner.name: other(getattr(case.sampling, inner.name))}))
            assert [k for k, v in settings(changed).items() if v != settings(case)[k]] == [inner.name]
        return
    changed = replace(case, **{name: other(getattr(case, name))})
    assert [k for k, v in settings(changed).items() if v != settings(case)[k]] == [name]
    assert all(isinstance(value, str | int | float) for value in settings(case).values())


@pytest.fixture(scope="module")
def view() -> ReportView:
    return build(sample.RUN, sample.outcomes())


def test_every_chart_is_written_once_in_the_kind_that_a_paper_needs(view: ReportView, tmp_path: Path) -> None:
    written = figures.write(view, tmp_path / "new", width="3.25in")
    charts = [chart for chart in chart_sets(view)[0].charts if chart.plot]
    assert len(written) == len(charts) == len({path.name for path in written})
    assert "tiny-llamagen-fidelity-against-memory.svg" in {path.name for path in written}
    assert {ET.fromstring(path.read_bytes()).get("width") for path in written} == {"234.00pt"}
    for kind, head in (("pdf", b"%PDF-"), ("png", b"\x89PNG")):
        written = figures.write(view, tmp_path, kind=kind)
        assert {(path.suffix, path.read_bytes()[:len(head)]) for path in written} == {(f".{kind}", head)}
        if kind == "png":
            with Image.open(written[0]) as image:
                assert image.width == pytest.approx(3.25 * figures.DOTS, abs=2)


def test_methods_differ_in_shape_and_dash_and_figures_name_their_parts(view: ReportView) -> None:
    drawing = chart_sets(view)[0]
    svg = figures.figure(drawing.on_tab("leaderboard")[0], drawing, 234.0)
    assert len(set(re.findall(r'<path d="([^"]+)" transform="translate\([^"]*\)" fill', svg))) == len(sample.METHODS)
    lines = re.findall(r'<path d="M[^"]*" stroke="(#[0-9A-F]{6})"( stroke-dasharray="[^"]+")? class="s\d+" opacity', svg)
    assert (len(lines), len({dash for _, dash in lines})) == (len(sample.METHODS), 4)
    assert "currentColor" not in svg
    assert [e.text for e in ET.fromstring(svg).findall(f"{SVG}text")] == [display_name(name) for name in sorted(sample.METHODS)]
    drawn = {chart.title: ET.fromstring(figures.figure(chart, drawing, 234.0)) for chart in drawing.charts if chart.plot}
    below = {title: [e.text for e in svg.findall(f"{SVG}text")] for title, svg in drawn.items()}
    assert below["Time per batch, by part"] == ["Tokens", "Decode + other"]
    assert below["Memory by part"] == ["Keys and values", "Workspace", "State"]
    assert [e.get("fill-opacity") for e in drawn["Memory by part"].findall(f"{SVG}path")] == ["1", "0.6", "0.3"]
    assert "Color consistency, difference (points)" in [*drawn["Color consistency, paired difference from the full cache"].itertext()]


def rows(png: bytes) -> list[bytes]:
    """The pixels of each row of tiles, without the names."""
    with Image.open(io.BytesIO(png)) as image:
        remaining = image.width - FIXED * TILE
        assert remaining > TILE, "there is room for names"
        assert image.crop((0, 0, remaining, image.height)).getcolors(2) is None, "and they are drawn"
        return [image.crop((remaining, top, image.width, top + TILE)).tobytes() for top in range(0, image.height, TILE)]


def test_the_full_cache_stands_above_each_case_at_the_fixed_seeds() -> None:
    full, linear, window = rows(figures.grid(sample.outcomes(), sample.sprite, ["linear 1/4", "window 1/4"]))
    with Image.open(io.BytesIO(sample.sprite("linear-1/4"))) as image:
        assert linear == image.crop((8 * TILE, TILE, 12 * TILE, 2 * TILE)).tobytes()
    turned = figures.grid(sample.outcomes(), sample.sprite, ["window 1/4", "linear 1/4"])
    assert rows(turned) == [full, window, linear], "in the order of the request"
    assert rows(figures.grid(sample.outcomes(), sample.sprite, ["LineAR 1/4"])) == [full, linear], "by the name that the grid prints"
    with Image.open(io.BytesIO(figures.grid(sample.outcomes(), sample.sprite, ["linear 1/4"], scale=4))) as enlarged:
        assert enlarged.height == 2 * 4 * TILE
    pair = [*sample.outcomes(), *(replace(o, case=replace(o.case, model="another")) for o in sample.outcomes())]
    with pytest.raises(UnknownName, match="several models: tiny-llamagen, another"):
        figures.grid(pair, sample.sprite, ["linear 1/4"])
    assert len(rows(figures.grid(pair, sample.sprite, ["linear 1/4"], "another"))) == 2
