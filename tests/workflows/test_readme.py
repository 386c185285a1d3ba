"""README's library example, and runs and cases in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

import cachemark as cm
from cachemark.core.errors import CachemarkError, NothingMeasured, UnknownName, Unsupported
from cachemark.core.result import Status
from cachemark.store.db import Store
from cachemark.trial.executors import local as executor
from cachemark.workflows.compare import Terms
from cachemark.workflows.results import Run
from cachemark.workflows.run import run as measure
from cachemark.workflows.session import Machine
from support import stages
from support.examples import MODEL
from test_docs import ROOT, blocks

HOSTILE = '<b>&"\'\u202e'


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small stand-in for the plan ``demo``, in an empty working folder."""
    stage = stages.stage(tmp_path / "stage", '{ name = "rkv", alpha = 4 }, "streaming", "window"', top='plugins = ["dot.py"]')
    monkeypatch.chdir(tmp_path)
    return stage.plan


def test_the_example_of_the_readme(demo: Path, quick_pairs: None) -> None:
    (block,) = (b for b in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if b.language == "python")
    space: dict[str, Any] = {}
    with stages.forgetting():
        exec(block.text.replace('cm.plan("demo")', f"cm.plan({str(demo)!r})"), space)
    run = space["run"]
    assert isinstance(run, Run)
    assert {o.case.label for o in run.outcomes} == {"full", "full (other seeds)", "full (other batch)", "rkv 1/2", "streaming 1/2"}
    assert Path("report.html").stat().st_size > 1000
    assert {o.case.label for o in cm.open("results.sqlite").outcomes} == {o.case.label for o in run.outcomes}, "a comparison is not a run"


@pytest.mark.parametrize("given", [False, True])
def test_cases_of_a_plan_with_plug_ins_are_compared_once_more(given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the plan names its plug-in, whose method it gives a parameter, or the user does."""
    from cli import quick_machine

    monkeypatch.setattr(executor, "run_trials", quick_machine.Machine().run_trials)
    monkeypatch.setattr(executor, "identify", quick_machine.Machine().identify)
    method, top = ('"calm"', "") if given else ('{ name = "calm", sinks = 2 }', 'plugins = ["dot.py"]')
    plugin = MODEL.replace("methods.window import Window", "methods.streaming import Streaming as Window")
    stage = stages.stage(tmp_path, f'"window", {method}', plugin, top=top)
    with stages.forgetting():
        run = measure(stage.plan, stage.store, plugins=[stage.plugin] if given else [])
        found = run.compare("window 1/2", "calm 1/2", terms=Terms(delta=0.5, aa=False))
        assert [row.verdict for row in found.tally.rows if row.metric == "latency"] == ["equivalent"]


def test_a_frame_has_a_row_for_each_case(measured: stages.Stage) -> None:
    run = cm.open(measured.store)
    frame = run.frame()
    assert list(frame["label"]) == [o.case.label for o in run.outcomes]
    assert frame["case"].is_unique
    assert frame.attrs["units"]["latency"] == "s"
    assert frame.attrs["better"] == {**frame.attrs["better"], "latency": "lower", "psnr": "higher"}
    latencies = dict(zip(frame["label"], frame["latency"], strict=True))
    assert latencies["full"] == run["full"].outcome.median("latency")
    assert pd.isna(latencies["full (other seeds)"]), "a reference row is not timed"
    assert set(frame.attrs["units"]) <= set(frame.columns)


def test_a_run_shows_its_leaderboard(measured: stages.Stage) -> None:
    drawn = ET.fromstring(f"<div>{cm.open(measured.store)._repr_html_()}</div>")
    names = ["".join(cell.itertext()) for cell in drawn.iterfind(".//tbody/tr/th")]
    assert {"full", "StreamingLLM", "calm"} <= set(names)
    assert len({sum(int(cell.get("colspan", 1)) for cell in row) for row in drawn.iterfind(".//tr")}) == 1, "rows are equally wide"


def test_a_case_shows_its_images(measured: stages.Stage) -> None:
    case = cm.open(measured.store)["streaming 1/2"]
    image = ET.fromstring(f"<div>{case._repr_html_()}</div>").find(".//img")
    png = case.images()
    assert image is not None
    assert png is not None
    assert image.get("src", "").startswith("data:image/png;base64,iVBORw0KGgo")
    assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("show", [lambda run: run._repr_html_(), lambda run: run.cases[0]._repr_html_()], ids=["run", "case"])
def test_what_a_user_wrote_is_escaped(measured: stages.Stage, show: Callable[[Run], str]) -> None:
    run = cm.open(measured.store)
    odd = [replace(o, case=replace(o.case, model=HOSTILE, variant=HOSTILE)) for o in run.outcomes]
    odd[0] = replace(odd[0], status=Status.ERROR, samples={}, artifacts={}, log=HOSTILE)
    run.outcomes = tuple(odd)
    shown = show(run)
    text = "".join(ET.fromstring(f"<div>{shown}</div>").itertext())
    assert "<b>&\"'" in text
    assert "\u202e" not in shown


def test_a_case_that_is_not_there_is_named(measured: stages.Stage) -> None:
    with pytest.raises(UnknownName, match="streaming 1/2"):
        cm.open(measured.store)["streaming 1/3"]


def test_a_run_without_an_outcome_asks_for_the_machine(measured: stages.Stage, tmp_path: Path) -> None:
    stage = measured.copy(tmp_path / "copy")
    with Store.open(stage.store) as store:
        first = store.run(1)
        run = store.begin_run(first.plan, dict(first.plan_json), first.environment, {})
    with pytest.raises(NothingMeasured, match=f"Run {run} has no outcome, so its device is not known.*machine="):
        cm.open(stage.store, run).compare("full", "streaming 1/2")


@pytest.mark.parametrize(("given", "error", "words"), [
    ({"device": "cuda:1"}, UnknownName, "Unknown device 'cuda:1'. Known: cpu, cuda.*gpus="),
    ({"device": "cuda", "executor": "ray", "gpus": ("1",)}, Unsupported, "--gpu and --lock-clocks have no effect"),
    ({"device": "cuda", "executor": "ray", "clock": 1410}, Unsupported, "--gpu and --lock-clocks have no effect"),
])  # fmt: skip
def test_a_machine_that_would_not_be_had_as_it_was_named(given: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    with pytest.raises(error, match=words):
        Machine(**given)
