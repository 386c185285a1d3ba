"""Frames: every case, metric and raw value is there, with the report's own values."""

from __future__ import annotations

import csv as csv_module
import io
import math
import statistics
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cachemark.core.result import Outcome
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS
from cachemark.export.frames import COLUMNS, SAMPLE_COLUMNS, csv, frame, samples_frame, settings
from cachemark.store.db import Store
from report import report_sample as sample


def figure(table: pd.DataFrame, label: str, metric: str) -> dict[str, Any]:
    (row,) = table[(table.label == label) & (table.metric == metric)].to_dict("records")
    return dict(row)


def stored(path: Path, *runs: list[Outcome]) -> Path:
    with Store.open(path) as store:
        for values in runs:
            run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
            for outcome in values:
                store.save(run, replace(outcome, artifacts={}))
    return path


def test_there_is_one_row_for_each_case_and_metric() -> None:
    table = frame(sample.outcomes())
    assert tuple(table.columns) == COLUMNS
    measured = table[table.kind != "derived"]
    assert sorted(zip(measured.case, measured.metric, strict=True)) == sorted((o.case.key, m) for o in sample.outcomes() for m in o.samples)
    candidates = [o.case.key for o in sample.outcomes() if o.case.role == "candidate"]
    assert sorted(table[table.metric == "saving"].case) == sorted(candidates)
    assert len(table[table.metric == "speedup"]) == len(candidates) - 4  # h2o and rkv are judged for quality only


@pytest.mark.parametrize(("metric", "value"), [
    ("latency", statistics.median), ("kl", statistics.fmean), ("color_consistency", statistics.fmean),
])
def test_a_value_is_the_one_of_the_report(metric: str, value: Any) -> None:
    raw = sample.candidate("linear", "1/4").samples[metric]
    row = figure(frame(sample.outcomes()), "linear 1/4", metric)
    assert row["value"] == pytest.approx(value(raw), rel=1e-12)
    assert (row["mean"], row["median"]) == pytest.approx((statistics.fmean(raw), statistics.median(raw)), rel=1e-12)
    assert min(raw) <= row["low"] < row["value"] < row["high"] <= max(raw)
    assert (row["n"], row["unit"], row["better"], row["kind"], row["version"]) == (
        len(raw), METRICS[metric].unit, METRICS[metric].better, METRICS[metric].kind, METRICS[metric].version)


def test_few_repeats_cover_what_they_cover_and_a_single_value_has_no_interval() -> None:
    few = sample.measured(sample.full(), latency=[2.0, 3.0, 1.0])
    row = figure(frame([few]), "full", "latency")
    assert (row["value"], row["low"], row["high"], row["confidence"]) == (2.0, 1.0, 3.0, 1 - 2 * 0.5**3)
    single = figure(frame([few]), "full", "kv_logical")
    assert single["n"] == 1
    assert all(math.isnan(single[name]) for name in ("low", "high", "confidence"))


def test_a_case_without_figures_is_there_with_its_reason() -> None:
    table = frame(sample.mixed())
    failed = table[table.metric.isna()].set_index("label")
    assert dict(failed.status) == {"rkv 1/4": "oom", "h2o 1/4": "unsupported"}
    assert failed.reason["rkv 1/4"] == "MemoryError: 4.1 GiB wanted"
    assert "different-seed" in figure(table, "window 1/4", "speedup")["not_ranked"]
    assert "5 points of color consistency" in figure(table, "linear 1/4", "speedup")["not_ranked"]
    assert figure(table, "linear 1/2", "speedup")["not_ranked"] == ""


def test_figures_of_random_weights_are_withheld_and_raw_values_say_why() -> None:
    table, raw = frame(sample.random_weights()), samples_frame(sample.random_weights())
    assert set(table.kind.dropna()) == {"speed", "memory", "derived"}
    assert set(table[table.metric.isna()].label) == {"full (other seeds)", "full (other batch)"}  # of which nothing is left
    assert set(table.reason) == {"Weights are random: images are noise."}
    assert {"fidelity", "quality"} <= set(raw.kind)
    assert set(raw.judgement) == {"Weights are random: images are noise."}


def test_every_raw_value_is_there_in_its_order() -> None:
    table = samples_frame(sample.outcomes())
    assert tuple(table.columns) == SAMPLE_COLUMNS
    contents = {key: list(rows.sort_values("index").value) for key, rows in table.groupby(["case", "metric"])}
    assert contents == {(o.case.key, name): list(values) for o in sample.outcomes() for name, values in o.samples.items()}


def test_a_store_its_path_and_outcomes_give_the_same(tmp_path: Path) -> None:
    path = stored(tmp_path / "s.sqlite", sample.outcomes(), [sample.full()])
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
    """Another value of the same type."""
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


# ------------------------------------------------------------------------------------------------ lazily, and as files

def test_csv_reads_back_as_the_frame() -> None:
    table = frame(sample.mixed())
    head, *rows = csv_module.reader(io.StringIO(csv(table)))
    assert tuple(head) == COLUMNS
    assert [row[head.index("label")] for row in rows] == list(table.label)
    values = [float(row[head.index("value")]) if row[head.index("value")] else math.nan for row in rows]
    assert values == pytest.approx(list(table.value), rel=1e-15, nan_ok=True)
