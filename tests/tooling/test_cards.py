"""Generated reference pages: facts of methods, and models with the quality of their images."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from click.testing import CliRunner

from cachemark.core.errors import BadBaseline
from cachemark.core.result import Outcome
from cachemark.core.spec import Sampling
from cachemark.core.units import quality_name
from cachemark.gate import anchors, baselines
from cachemark.methods.registry import METHODS
from cachemark.models import checkpoints
from cachemark.models.registry import MODELS
from cachemark.models.weights import packaged
from cachemark.store.exchange import Exchange, dump
from tools.cards.__main__ import cards
from tools.cards.methods import claims, facts
from tools.cards.models import bundled, models_page, quality_run, released

PAGE = "# Methods\n\n## `mar`\n\n<!-- facts: fewer_steps -->\nold\n<!-- end of facts -->\n\nEnd.\n"


def test_the_command_writes_both_pages_and_keeps_text_outside_the_markers(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "methods.md").write_text(PAGE)
    CliRunner().invoke(cards, [str(tmp_path), "--baselines", str(tmp_path / "none")], catch_exceptions=False)
    methods, models = ((tmp_path / "reference" / name).read_text() for name in ("methods.md", "models.md"))
    assert methods.startswith("# Methods\n\n## `mar`\n\n<!-- facts: fewer_steps -->\n- **Source**: ")
    assert methods.endswith("<!-- end of facts -->\n\nEnd.\n")
    assert "old" not in methods
    assert models == models_page(tmp_path / "none")


def test_facts_of_a_method_are_its_source_checks_and_published_values() -> None:
    text = facts(METHODS.get("lazymar"))
    assert "LazyMAR (arXiv 2503.12450)" in text
    assert "`mar/golden_lazy` (16 checks)" in text
    assert f"`layer` ({METHODS.get('lazymar').unstated['layer']})" in text
    assert "`mar-b` 2.45 (64 passes), 2.64 (32 passes)" in text
    assert "(as for `lazymar`)" in facts(METHODS.get("random_tokens"))
    assert "Published FID" not in facts(METHODS.get("heatkv"))


def test_models_are_listed_with_their_sizes_and_stored_outputs() -> None:
    page = models_page(Path("nowhere"))
    assert set(bundled()) == {path.stem for path in packaged("x").parent.glob("*.safetensors")} - {"tiny-features.reference"} != set()
    for name in bundled():
        assert f"| `{name}` |" in page
        assert json.loads(packaged(f"{name}.json").read_text())["sha256"] == checkpoints.sha256(packaged(f"{name}.safetensors"))
    assert "`mar_large/checkpoint-last.pth` (478 M)" in page
    assert "`mar/golden_small`, 26 checks" in page
    assert "`tiny-var`: not measured with these weights" in page


Runs = Callable[..., tuple[Outcome, Exchange] | None]


@pytest.fixture
def quality_after(tmp_path: Path) -> Runs:
    """The run whose quality is shown for tiny-var after runs of these outcomes, each saved as a baseline, the oldest first."""
    own = checkpoints.sha256(packaged("tiny-var.safetensors"))

    def run(*runs: tuple[float, int, dict[str, Any]]) -> tuple[Outcome, Exchange] | None:
        for number, (fid, count, fields) in enumerate(runs):
            name, evaluation = quality_name("fid", "scene", count), {"preset": "scene", "seeds": "s2k", "samples": count, "batch": 50}
            case_fields = {"model": "tiny-var", "weights": f"{own}/coder", "sampling": Sampling(cfg_scale=1.5),
                           "evaluation": {"quality": evaluation}}
            case = dataclasses.replace(sample.full().case, **{**case_fields, **fields})
            facts = {"intervals": {name: [fid - 0.5, fid + 0.5]}, "real": {name: [0.5, 0.25, 0.75]}}
            outcome = dataclasses.replace(sample.full(), case=case, samples={name: [fid], "class_accuracy": [1.0] * count}, facts=facts)
            text = dump([outcome], sample.RUN.environment, {"commit": f"{number}" * 40}, plan="p", saved=f"2026-01-0{number + 1}")
            baselines.write(baselines.path_of(tmp_path, "a machine", f"run{number}"), text, remedy="")
        return quality_run("tiny-var", tmp_path)

    return run


def test_quality_comes_from_a_baseline_of_the_same_weights(quality_after: Runs, tmp_path: Path) -> None:
    assert quality_after((6.0, 2000, {})) is not None
    page = models_page(tmp_path)
    for row in ("| Class accuracy | 100.0 % [99.8 %, 100.0 %] |", "| FID | 6.000 [5.500, 6.500] |",
                "| FID of real images | 0.500 [0.250, 0.750] |", "`tiny-var`: 2000 images, cfg_scale 1.5; "):  # fmt: skip
        assert row in page, row
    baselines.write(tmp_path / "a machine" / "broken.json", "{", remedy="")
    with pytest.raises(BadBaseline, match=r"broken\.json"):
        models_page(tmp_path)


@pytest.mark.parametrize("fields", [{"weights": "0" * 64 + "/coder"}, {"model": "tiny-mar"}, {"role": "candidate"}, {"evaluation": {}}])
def test_images_of_other_cases_are_no_quality_of_a_model(quality_after: Runs, fields: dict[str, Any]) -> None:
    assert quality_after((6.0, 2000, fields)) is None


def test_the_newest_of_the_runs_with_the_most_images_counts(quality_after: Runs) -> None:
    chosen = quality_after((4.0, 2000, {}), (5.0, 2000, {}), (6.0, 500, {}))
    assert chosen is not None
    assert chosen[1].code["commit"] == "1" * 40


def test_what_a_source_does_not_state_is_a_parameter_of_its_method() -> None:
    for name in METHODS:
        cls = METHODS.get(name)
        assert set(cls.unstated) <= set(cls().parameters()), name
        assert all(reason and not reason.endswith(".") for reason in cls.unstated.values()), name


def test_published_values_are_of_models_and_methods_that_exist() -> None:
    for claim in claims():
        assert claim["model"] in MODELS
        assert MODELS.get(claim["model"]).paradigm in METHODS.get(claim["method"]).paradigms
        assert f"{float(claim['fid']):.2f}" == claim["fid"]
    assert len({json.dumps(claim) for claim in claims()}) == len(claims()) > 0
    for model, anchor in anchors.shipped().items():
        own = [claim["fid"] for claim in claims() if (claim["model"], claim["method"]) == (model, "full") and "README" in claim["paper"]]
        assert list(map(float, own)) == [anchor.expected]


def test_every_published_model_has_both_files() -> None:
    models = {model.name: model for model in released()}
    assert len(models) == 26
    decoded = {name: model for name, model in models.items() if name != "glm-image"}  # whose diffusion transformer is left out
    assert all({file.key for file in model.files} == {"weights", "decoder_weights"} for model in decoded.values())
    assert [file.key for file in models["glm-image"].files] == ["weights"]
