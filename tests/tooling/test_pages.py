"""Generated pages: those in the repository are what their stored values make, and what is missing shows."""

from __future__ import annotations

import dataclasses
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis.answers import answer
from cachemark.analysis.quality_claims import standing
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS, metric, quality_name
from cachemark.gate import anchors, baselines
from cachemark.methods.registry import METHODS
from cachemark.models import checkpoints
from cachemark.models.registry import MODELS
from cachemark.models.weights import packaged
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.stats.intervals import mean_over_seeds
from cachemark.store.db import Store
from cachemark.store.exchange import dump
from studies.papers.__main__ import published_fids
from tools.cards.models import models_page, quality_run, released
from tools.pages import results as script
from tools.site import hosts, links

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


# -- docs/results.md --------------------------------------------------------------------------------------------------
def outcome(case: Case, fid: float) -> Outcome:
    """Invented values of the right shape."""
    live = 1e6 * float(Fraction(case.budget or 1))
    samples = {"latency": [2.0, 2.01, 1.99], "kv_logical": [live], "kv_allocated": [live], "kv_workspace": [0.0], "kv_state": [0.0],
               "token_agreement": [0.5] * case.samples, "fid_scene_2k": [fid], "class_accuracy": [0.9]}
    return Outcome(case, Status.OK, samples, facts=Facts(
        paradigm="next-scale", intervals={"fid_scene_2k": [fid - 1, fid + 1]}, to_full={"fid_scene_2k": [fid - 10, fid - 11, fid - 9]}))


def test_values_of_a_store_get_rows_and_missing_ones_a_dash(tmp_path: Path) -> None:
    cases = [planned.case for planned in expand(load("rivals"))][:6]
    outcomes = [outcome(case, 10.0 + 5 * place) for place, case in enumerate(cases)]
    outcomes[-1] = Outcome(cases[-1], Status.OOM, log="4.1 GiB wanted")
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("rivals", {"name": "rivals"}, sample.RUN.environment, sample.RUN.code)
        for row in outcomes:
            store.save(run, row)
        store.finish_run(run, "interrupted")
    text = script.text(json.loads(json.dumps(script.take(tmp_path / "s.sqlite", "rivals")))).replace("\\", "")
    (good,) = (line for line in text.splitlines() if line.startswith(f"| {cases[-2].method} | {cases[-2].label.split()[1]} | 30.0"))
    assert "30.0 [29.0, 31.0]" in good.replace("*", "")
    assert "20.0 [19.0, 21.0]" in good, "less the full cache's"
    assert f"- {cases[-1].label}: oom: 4.1 GiB wanted" in text
    assert "the run is interrupted" in text


TABLES = {  # model: the beginning of the table's head, and the metric of each column
    "tiny-llamagen": ("| method | budget | KL, nat/token |", ("kl", "token_agreement", "psnr", "color_consistency")),
    "tiny-var": ("| method | share of full | KL, nat/token |", ("kl", "token_agreement", "psnr", "color_consistency")),
    "tiny-mar": ("| method | FLOPs | forced distance |", ("forced_distance", "token_distance", "psnr", "color_consistency")),
}
REACHED = {"0.73": "0.78", "0.58": "0.61"}  # FLOPs that fewer passes reach, and their budget
ROLES = {"*full, different seeds*": ("full", "other_seeds"), "*full, different batch size*": ("full", "other_batch")}


@pytest.mark.parametrize("model", TABLES)
def test_intervals_of_the_recorded_tables_are_those_of_the_stored_samples(model: str) -> None:
    run = json.loads((ROOT / "reports" / "bundled.json").read_text(encoding="utf-8"))
    recorded = "\n\n".join(map(script.recorded, json.loads((script.FOLDER / script.RECORDED).read_text(encoding="utf-8"))))
    commit = re.search(r"`cachemark run demo`, commit ([0-9a-f]{10})", recorded)
    assert commit
    assert run["commit"].startswith(commit[1])
    stored = {(case["method"], case["role"], f"{float(Fraction(case['budget'])):.2f}"): case["samples"]
              for case in run["cases"] if case["model"] == model}
    head, metrics = TABLES[model]
    compared = 0
    for line in recorded.split(head, 1)[1].split("\n\n", 1)[0].splitlines()[2:]:
        method, budget, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        samples = stored[(*ROLES.get(method, (method, "")), f"{float(Fraction(REACHED.get(budget, budget))):.2f}")]
        for name, cell in zip(metrics, cells, strict=False):
            if not cell or (method == "full" and name != "color_consistency"):
                continue
            interval = mean_over_seeds(samples[name], METRICS[name].within)
            expected = [interval.value, interval.low, interval.high] if interval.stated else [interval.value]
            shown = [float(number) for number in re.findall(r"-?\d+\.\d+|-?\d+", cell.replace("−", "-"))]
            rounded = [round(value, 1 if metric(name).unit == "dB" else 3) for value in expected]
            assert shown == pytest.approx(rounded[: len(shown)], abs=1e-9), (method, name)
            compared += len(shown)
    assert compared > 20


def test_the_answers_of_the_readme_are_those_of_the_accepted_demo() -> None:
    demo = baselines.load(ROOT / "baselines" / "accepted" / "amd-epyc-1-threads" / "demo.json")
    groups, found_claims = standing(demo.outcomes)
    expected = {}
    for group in groups:
        recommended = answer(group, found_claims)
        row = recommended.row or recommended.lean
        assert row
        numbers = [number for _, value, ends in recommended.numbers for number in re.findall(r"\d+\.\d+", f"{value} {ends}")]
        expected[group.model] = ([row.case.method], numbers)
    table = README.split("| model | recommendation | speedup | savings | color consistency |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    shown = {}
    for line in table:
        model, method, *values = (cell.strip() for cell in line.strip("|").split("|"))
        shown[model.strip("`")] = (re.findall(r"`(\w+)`", method), [n for text in values for n in re.findall(r"\d+\.\d+", text)])
    assert shown == expected
    commit = re.search(r"commit ([0-9a-f]{10})", README)
    assert commit
    assert str(demo.code["commit"]).startswith(commit[1])


# -- reference pages of methods and models; tests/test_docs.py makes both anew ------------------------------------------
def test_quality_of_a_model_is_that_of_the_newest_run_with_the_most_images_of_its_weights(tmp_path: Path) -> None:
    own = f"{checkpoints.sha256(packaged('tiny-var.safetensors'))}/coder"
    runs: list[tuple[float, int, dict[str, Any]]] = [
        (4.0, 2000, {}), (5.0, 2000, {}), (6.0, 500, {}),
        *((7.0, 3000, other) for other in ({"weights": "0/coder"}, {"model": "tiny-mar"}, {"role": "candidate"}, {"evaluation": {}}))]
    for number, (fid, images, fields) in enumerate(runs):
        name, quality = quality_name("fid", "scene", images), {"preset": "scene", "seeds": "s2k", "samples": images, "batch": 50}
        case = dataclasses.replace(sample.full().case, **{"model": "tiny-var", "weights": own, "sampling": Sampling(cfg_scale=1.5),
                                                          "evaluation": {"quality": quality}, **fields})
        facts = {"intervals": {name: [fid - 0.5, fid + 0.5]}, "real": {name: [0.5, 0.25, 0.75]}}
        result = dataclasses.replace(sample.full(), case=case,
                                     samples={name: [fid], "class_accuracy": [1.0] * images}, facts=Facts.from_json(facts))
        text = dump([result], sample.RUN.environment, {"commit": f"{number}" * 40}, plan="p", saved=f"2026-01-0{number + 1}")
        baselines.write(baselines.path_of(tmp_path, "a machine", f"run{number}"), text, remedy="")
    chosen = quality_run("tiny-var", tmp_path)
    assert chosen
    assert chosen[1].code["commit"] == "1" * 40
    page = models_page(tmp_path)
    assert "| FID | 5.000 [4.500, 5.500] |" in page
    assert "| FID of real images | 0.500 [0.250, 0.750] |" in page


def test_published_values_are_of_models_and_methods_that_exist() -> None:
    for name in METHODS:
        assert set(METHODS.get(name).unstated) <= {field.name for field in dataclasses.fields(METHODS.get(name))}, name
    for claim in published_fids():
        assert MODELS.get(claim["model"]).paradigm in METHODS.get(claim["method"]).paradigms
    for model, anchor in anchors.shipped().items():
        own = [claim["fid"] for claim in published_fids()
               if (claim["model"], claim["method"]) == (model, "full") and "README" in claim["paper"]]
        assert list(map(float, own)) == [anchor.expected]
    files = {model.name: {file.key for file in model.files} for model in released()}
    assert len(files) == 26
    assert {name for name, keys in files.items() if keys != {"weights", "decoder_weights"}} == {"glm-image"}


# -- the site; tests/test_site.py builds it -----------------------------------------------------------------------------
def test_links_that_leave_docs_lead_to_the_copy_and_others_stay() -> None:
    text = ("[a](../../ci/n.sh) [b](gate.md#how) [c](../errors.md) [d](#x) [e](https://x.org/a.md) ![f](../../reports/d.html#t)\n"
            "```python\nrun[0](../../ci/n.sh)\n```\n")
    assert links.rewritten(text, "docs/how-to/nightly.md") == text.replace("(../../ci/n.sh) [b", "(../repository/ci/n.sh.md) [b").replace(
        "(../../reports/d.html#t", "(../repository/reports/d.html#t")


@pytest.mark.parametrize("text", [
    '<script src="https://x.org/a.js"></script>', '<img src="//x.org/a.png">', '<link rel="stylesheet" href="http://x.org/a.css">',
    '<p style="background: url(https://x.org/a.png)">', "<style>@import 'https://x.org/a.css'</style>", '<iframe src="HTTPS://x.org"></iframe>',
])
def test_what_a_page_loads_from_another_host_is_found(text: str) -> None:
    assert len(hosts.loads(text)) == 1
