"""The Python API as README and the guide show it: generation, measurement, and runs and cases in a notebook."""

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import cachemark as cm
from cachemark.core.errors import BadBudget, BadParameter, BadPlan, BadPlugin, CachemarkError, UnknownName, Unsupported
from cachemark.core.result import Status
from cachemark.core.spec import Budget
from cachemark.export import captions
from cachemark.methods.registry import METHODS
from cachemark.methods.window import Window
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.schema import Cells, Plan
from cachemark.report.page.render import chart_sets
from cachemark.trial.executors import local as executor
from cachemark.trial.request import Task
from cachemark.workflows import generate as generating, generated, measure as measuring
from cachemark.workflows.compare import Terms
from cachemark.workflows.generate import ImageModel
from cachemark.workflows.measure import plan_of
from cachemark.workflows.results import Run
from cli import quick_machine
from support import fork_server, stages
from support.examples import MODEL
from support.later import later
from test_docs import ROOT, blocks

GUIDE = ROOT / "docs" / "how-to" / "use-from-python.md"
HOSTILE = '<b>&"\'\u202e'


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return cm.load("tiny-var")


def test_a_generation_is_that_of_its_method_and_seeds_whatever_library_has_its_numbers(model: ImageModel) -> None:
    full = model.generate(labels=[3, 7], seeds=[0, 1])
    tight = model.generate(labels=[3, 7], seeds=[0, 1], method="window", budget="1/2")
    assert full.images.shape == (2, 3, 64, 64)
    assert full.kv_bytes == 2 * tight.kv_bytes
    assert tight.case.label == "window 1/2"
    assert not torch.equal(full.tokens, tight.tokens)
    assert torch.equal(model.generate(labels=[7], seeds=[1]).tokens, full.tokens[1:])
    assert torch.equal(model.generate(labels=[3, 7], method="window", budget=1).tokens, full.tokens)
    five = model.generate(seeds=5)
    assert len(set(five.labels)) == 5, "classes are balanced"
    assert Image.open(BytesIO(five._repr_png_())).size == (3 * 64, 2 * 64)
    assert five._repr_html_().startswith('<figure><img alt="generated images" src="data:image/png;base64,iVBORw0KGgo')
    case, _, *numbers = model.prepared(labels=[3, 4], seeds=[0, 1], guidance=2.5, sampling={"top_k": 7})
    for labels, seeds in ((np.array([3, 4], dtype=np.uint8), pd.Series([0, 1])), (torch.tensor([3, 4]), np.int64(2)),
                          (pd.Index([3, 4]), torch.tensor(2)), (iter([3, 4]), [np.int32(0), 1])):
        same = model.prepared(labels=labels, seeds=seeds, guidance=np.float64(2.5), batch=np.int64(2), sampling={"top_k": np.int64(7)})
        assert (same[0].case, *same[2:]) == (case.case, *numbers)
        assert {type(number) for each in same[2:] for number in each} == {int}


def test_batches_change_memory_alone(model: ImageModel, tmp_path: Path) -> None:
    together = model.generate(labels=3, seeds=3, method="window", guidance=2.5, sampling="greedy")
    apart = model.generate(labels=[3, 3, 3], seeds=[0, 1, 2], method="window", batch=2, sampling={"cfg_scale": 2.5, "temperature": 0.0})
    assert together.case.sampling == apart.case.sampling
    assert torch.equal(together.tokens, apart.tokens)
    assert 2 * together.kv_bytes == 3 * apart.kv_bytes, "3 images at a time, or 2"
    assert together.state_bytes > apart.state_bytes > 0
    assert all(rate > 0 for each in (together, apart) for rate in each.tokens_per_s)
    assert not torch.equal(together.tokens, model.generate(labels=3, seeds=3, method="window", sampling="greedy").tokens), "other guidance"
    with Image.open(together.save(tmp_path / "grid.png", left=apart)) as grid:
        assert grid.size == (2 * 2 * 64 + generated.GAP, 2 * 64 + captions.HEIGHT)
        assert grid.crop((0, 0, 2 * 64, 64)).tobytes() == grid.crop((2 * 64 + generated.GAP, 0, 4 * 64 + generated.GAP, 64)).tobytes()
    with pytest.raises(Unsupported, match=r"'grid\.gif' does not end in \.png.*'grid\.png'"):
        together.save("grid.gif")
    with pytest.raises(Unsupported, match="do not fit side by side"):
        together.save(tmp_path / "pair.png", left=model.generate(labels=[1]))
    (tmp_path / "thesis.png").write_text("of somebody else")
    with pytest.raises(CachemarkError, match="is not a PNG image of cachemark"):
        together.save(tmp_path / "thesis.png")


def test_prompts_masked_models_and_methods_with_sizes_have_their_defaults() -> None:
    prompted, _, *numbers = cm.load("tiny-t2i").prepared(prompts=["two red stars above blue stripes", "two red\nstars"], method="window")
    assert (prompted.case.budget, numbers) == ("1/2", [[0, 1], [0, 1]])
    masked = cm.load("tiny-mar").generate(seeds=1, method="lazymar", sampling={"steps": 6, "diffusion_steps": 4}).case
    assert masked.budget == str(Budget(METHODS.get("lazymar")().own_budget(MODELS.get("tiny-mar").shape(masked.sampling, 1))))
    model = cm.load("tiny-var")
    cases = [model.prepared(seeds=1, method="ams_kv", **parameters)[0].case for parameters in ({}, {"demanding": [1]})]
    assert [case.budget for case in cases] == ["1", f"{274 + 5 * 149}/{6 * 274}"]  # of the entries before the last scale


@pytest.mark.parametrize(("name", "ignored", "read"), [
    ("tiny-mar", {"top_k": 1, "top_p": 0.5, "cfg_interval": 3}, {"steps": 8}), ("tiny-var", {"diffusion_steps": 3, "cfg_interval": 3}, {}),
    ("tiny-llamagen", {"steps": 3, "diffusion_steps": 3}, {"cfg_interval": 3}), ("tiny-t2i", {"steps": 3}, {"top_p": 0.5}),
])
def test_settings_that_a_model_ignores_are_refused(name: str, ignored: dict[str, Any], read: dict[str, Any]) -> None:
    model = cm.load(name)
    for setting, value in ignored.items():
        with pytest.raises(BadPlan, match=rf"sampling\.{setting} has no effect on {name}, .*Use: cfg_scale, temperature"):
            model.prepared(seeds=1, sampling={setting: value})
    assert model.prepared(seeds=1, sampling=read)


@pytest.mark.parametrize(("given", "error", "words"), [
    ({"labels": [99]}, UnknownName, "no class 99.*0 … 9"),
    ({"labels": [1, 2], "seeds": [1, 2, 3]}, BadPlan, "3 seeds were given for 2 images"),
    ({"labels": [1], "prompts": ["a"]}, BadPlan, "labels and prompts cannot be combined"),
    ({"labels": "two red stars"}, BadPlan, "Pass texts as prompts="),
    ({"seeds": [-1]}, BadPlan, "out of range"),
    ({"method": "window", "B": -1}, (BadParameter, BadBudget), "B = -1"),
    ({"budget": "1/2"}, BadBudget, "full cache does not evict, so budget 1/2"),
    ({"batch": 0}, BadPlan, "generate: batch: .* It is '0'"),
    ({"labels": [1.0]}, BadPlan, "labels are whole numbers, and 1.0 is of type float"),
    ({"labels": np.array([True])}, BadPlan, "labels are whole numbers, and True is of type bool"),
    ({"seeds": np.float32(2)}, BadPlan, "seeds are whole numbers, and 2.0 is of type float"),
    ({"prompts": [3]}, BadPlan, "prompts are texts, and 3 is of type int"),
    ({"sampling": {"temprature": 1}}, BadPlan, "sampling.temprature: extra inputs are not permitted"),
    ({"sampling": "gredy", "guidance": 2}, UnknownName, "Did you mean 'greedy'"),
    ({"guidance": float("nan")}, BadPlan, "cfg_scale: input should be a finite number"),
])  # fmt: skip
def test_a_generation_that_is_refused(model: ImageModel, given: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    with pytest.raises(error, match=words):
        model.generate(**given)


@pytest.fixture
def quick_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are measured on one thread; the candidates of pairs answer at once."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    made, real = quick_machine.Machine(), executor.run_trials

    def run_trials(planned: Any, options: Any, *rest: Any, **more: Any) -> Iterator[Any]:
        return (made.run_trials if options.task is Task.TIMES else real)(planned, options, *rest, **more)

    monkeypatch.setattr(executor, "run_trials", run_trials)
    monkeypatch.setattr(executor, "identify", made.identify)


@pytest.mark.usefixtures("quick_pairs")
def test_the_guide_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (b for b in blocks(GUIDE.read_text(encoding="utf-8")) if b.file == "measure.py")
    stages.stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    text, space = block.text, dict[str, Any]()
    smaller = {'"tiny-var"': '"dot", plugins=["dot.py"], batch=2, weights="dot.safetensors"', '"ams_kv"': '"calm"', ', "1/4"]': "]"}
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new)
    text, fewer = re.subn(r"seeds=\d+", "seeds=2", text)
    assert fewer
    with stages.forgetting():
        exec(text, space)
    run = space["run"]
    assert {o.case.label for o in run.outcomes} >= {"full", "window 1/2", "calm 1/2"}
    assert all(o.ok for o in run.outcomes)
    picture = run["window 1/2"].images()
    with Image.open(BytesIO(picture)) as opened:
        assert repr(picture) == f"<PNG of {opened.width} × {opened.height} pixels, {len(picture):,} bytes>"
    assert Path("report.html").stat().st_size > 1000


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in order, with fewer seeds; the last line of a cell is shown as a notebook does."""
    cells = json.loads((ROOT / "examples" / "first-steps.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fork_server, "enabled", True)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    space, shown = dict[str, Any](), list[str]()
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        *body, last = ast.parse(cell["source"].replace("seeds=16", "seeds=2").replace("batch=8", "batch=2")).body
        exec(compile(ast.Module(body, []), "cell", "exec"), space)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
        shown.append(type(value).__name__)
    assert shown == ["Generated", "Generated", "Image", "DataFrame", "Run", "DataFrame", "VConcatChart", "PosixPath"]
    assert all(outcome.ok for outcome in space["run"].outcomes)


def test_a_method_of_a_notebook_is_not_measured_before_it_is_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stages.forgetting():
        cm.method("mine")(type("Mine", (cm.Scored,), {"__module__": "__main__", "score": lambda self, step, slots: slots.keys()[..., 0]}))
        with pytest.raises(Unsupported, match="plugins="):
            cm.measure("tiny-llamagen", methods=["mine"])
        file = tmp_path / "mine.py"
        file.write_text('import cachemark as cm\n@cm.method("mine")\nclass Mine(cm.Scored):\n    pass\n')
        monkeypatch.setattr(measuring, "run", lambda plan, *_, plugins, **__: (plan.cells[0].methods, plugins))
        assert cm.measure("tiny-llamagen", methods=["mine"], plugins=[file]) == (["mine"], [file]), "as the error says"


@pytest.mark.usefixtures("quick_pairs")
def test_the_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = stages.stage(tmp_path / "stage", '{ name = "rkv", alpha = 4 }, "streaming", "window"', samples=2, top='plugins = ["dot.py"]')
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if b.language == "python")
    space: dict[str, Any] = {}
    with stages.forgetting():
        exec(block.text.replace('cm.plan("demo")', f"cm.plan({str(demo.plan)!r})"), space)
    run = space["run"]
    assert isinstance(run, Run)
    with Image.open("stars.png") as made, Image.open(ROOT / "docs" / "assets" / "stars.png") as shown:
        assert made.size == shown.size
        difference = np.abs(np.asarray(made, float) - np.asarray(shown, float)).mean()
        assert difference < 16, "the picture is that of the code, but for rounding on other machines"
    assert {o.case.label for o in run.outcomes} == {"full", "full (other seeds)", "full (other batch)", "rkv 1/2", "streaming 1/2"}
    assert Path("report.html").stat().st_size > 1000
    assert {o.case.label for o in cm.open("results.sqlite").outcomes} == {o.case.label for o in run.outcomes}, "a comparison is not a run"


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.usefixtures("quick_pairs")
def test_cases_of_a_plan_with_plug_ins_are_compared_once_more(given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the plan names its plug-in, whose method it gives a parameter, or the user does; a store alone imports nothing."""
    monkeypatch.setattr(executor, "run_trials", quick_machine.Machine().run_trials)
    method, top = ('"calm"', "") if given else ('{ name = "calm", sinks = 2 }', 'plugins = ["dot.py"]')
    plugin = MODEL.replace("methods.window import Window", "methods.streaming import Streaming as Window")
    stage = stages.stage(tmp_path, f'"window", {method}', plugin, samples=2, top=top)
    with stages.forgetting():
        run = cm.run(stage.plan, stage.store, plugins=stage.plugin if given else ())
    with stages.forgetting():
        if given:
            run = cm.open(stage.store)
            with pytest.raises(BadPlugin, match=r"If you trust the code, add plugins=run\.plugins"):
                run.compare("window 1/2", "calm 1/2")
        comparison = run.compare("window 1/2", "calm 1/2", terms=Terms(delta=0.5, aa=False), plugins=run.plugins if given else ())
        assert [row.verdict for row in comparison.tally.rows if row.metric == "latency"] == ["equivalent"]
        assert repr(comparison).startswith("<window 1/2 → calm 1/2: 0 regressed, 0 undecided of 1 configurations")
        if given:
            stage.plugin.write_text(f"{plugin}\nOTHER = 1\n")
            with pytest.raises(BadPlugin, match=r"missing or has changed.*plugins="):
                cm.open(stage.store, 1).compare("window 1/2", "calm 1/2")


def test_a_frame_has_a_row_for_each_case_and_what_a_user_wrote_is_escaped(measured: stages.Stage) -> None:
    run = cm.open(measured.store)
    frame = run.frame()
    assert list(frame["label"]) == [o.case.label for o in run.outcomes]
    assert frame["case"].is_unique
    assert frame.attrs["units"]["latency"] == "s"
    assert frame.attrs["better"] == {**frame.attrs["better"], "latency": "lower", "psnr": "higher"}
    latencies = frame.set_index("label")["latency"]
    assert latencies["full"] == run["full"].outcome.median("latency")
    assert pd.isna(latencies["full (other seeds)"]), "a reference row is not timed"
    run = cm.open(measured.store)
    odd = [replace(o, case=replace(o.case, model=HOSTILE, variant=HOSTILE)) for o in run.outcomes]
    odd[0] = replace(odd[0], status=Status.ERROR, samples={}, artifacts={}, log=HOSTILE)
    run.outcomes = tuple(odd)
    for shown in (run._repr_html_(), run.cases[0]._repr_html_()):
        text = "".join(ET.fromstring(f"<div>{shown}</div>").itertext())
        assert "<b>&\"'" in text
        assert "\u202e" not in shown


def test_stored_tokens_become_a_sample_batch(measured: stages.Stage, tmp_path: Path) -> None:
    """With the very images that were compared, of a case by its label."""
    options = "--store", measured.store, "--plugin", measured.plugin
    for label, outcome in measured.outcomes().items():
        if outcome.case.role not in ("baseline", "candidate"):
            continue
        stages.good(stages.call("export", "images", tmp_path / "samples.npz", label, *options))
        with np.load(tmp_path / "samples.npz") as file:
            channels_first = np.ascontiguousarray(file["arr_0"].transpose(0, 3, 1, 2))
            assert hashlib.sha256(channels_first.tobytes()).hexdigest() == outcome.facts.images_hash
            assert json.loads(file["manifest.json"])["case"] == outcome.case.to_json()
    for words, error in ((("x.npz", "calm 1/9"), "Unknown case 'calm 1/9'"), (("x.png", "full"), "does not end in .npz")):
        refused = stages.call("export", "images", tmp_path / words[0], words[1], *options)
        assert (refused.exit_code, error in refused.output) == (2, True)


charts, convert = later("cachemark.export.altair_charts"), later("vl_convert")
GUESSES = tomllib.loads(Path(__file__).with_name("guesses.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def space(measured: stages.Stage, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a session has after its first minutes; ``plan_of`` is the part of ``cm.measure`` before it measures."""
    model = cm.load("tiny-var")
    return {"cm": cm, "m": model, "t": cm.load("tiny-t2i"), "im": model.generate(seeds=2), "Window": Window, "run": cm.open(measured.store),
            "folder": tmp_path_factory.mktemp("images"), "plan_of": plan_of,
            "expanded": lambda methods: expand(Plan(name="x", cells=[Cells(model="tiny-var", methods=methods)]))}


@pytest.mark.parametrize("call", GUESSES["works"])
def test_a_guess_works(space: dict[str, Any], call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its case and bench, labels and seeds; those of other tests are generated."""
    monkeypatch.setattr(generating, "_generate", lambda planned, bench, labels, seeds, **_: replace(space["im"], case=planned.case))
    eval(call, space)


@pytest.mark.parametrize(("call", "line"), GUESSES["refused"].items())
def test_a_guess_names_what_to_write(space: dict[str, Any], call: str, line: str) -> None:
    with pytest.raises((CachemarkError, AttributeError)) as refused:
        eval(call, space)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["tradeoff", "speed", "memory", "quality"])
def test_a_plot_has_the_charts_of_the_page(space: dict[str, Any], kind: str) -> None:
    drawn = space["run"].plot(kind)
    shown = [chart.title for drawing in chart_sets(space["run"].view) for chart in drawing.on_tab(charts.TABS[kind]) if chart.plot]
    svg = convert.vegalite_to_svg(drawn.to_json())
    assert shown
    assert [title for title in shown if f">{title}<" not in svg] == []


def test_objects_mean_what_their_names_do(space: dict[str, Any], tmp_path: Path) -> None:
    m, im = space["m"], space["im"]
    assert [image.tobytes() for image in im] == [pixels.tobytes() for pixels in im.numpy()]
    im.save(f"{tmp_path}/each/")
    assert len([*(tmp_path / "each").iterdir()]) == len(im) == 2
    by_name, by_object = m.generate([3], method="window", B=100), m.generate([3], method=Window(B=100))
    assert by_name.case == by_object.case
    assert by_name.tokens.equal(by_object.tokens)
    assert plan_of("tiny-var", "window", "1/2") == plan_of("tiny-var", ["window"], ["1/2"])
