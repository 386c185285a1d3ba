"""The shipped anchors: drawn as the publications draw, on the very files that the models read, and refused where those are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.gate import anchors
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.schema import load, names

ANCHORS = [name for name in names() if name.startswith("anchor-")]
PUBLISHED = {  # what the images of the published figure were drawn with
    "llamagen-xl": Sampling(cfg_scale=1.75),
    "var-d30": Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96),
    "mar-l": Sampling(cfg_scale=3.0, cfg_schedule="linear", steps=256),
}


def test_every_anchor_is_here() -> None:
    assert set(anchors.shipped()) == set(PUBLISHED) == {name.removeprefix("anchor-") for name in ANCHORS}


@pytest.mark.parametrize("name", ANCHORS)
def test_an_anchor_asks_for_the_files_of_its_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = load(name)
    (cells,) = plan.cells
    files = {file.key: file.name for file in MODELS.get(cells.model).files}
    assert {"weights": cells.weights, "decoder_weights": cells.decoder_weights} == {key: f"weights/{file}" for key, file in files.items()}
    assert (plan.name, bool(plan.description)) == (name, True)
    with pytest.raises(BadCheckpoint, match=rf"{name}\.toml:\d+: .*{cells.weights}"):
        expand(plan)


@pytest.mark.parametrize("name", ANCHORS)
def test_an_anchor_measures_the_full_cache_and_nothing_else(name: str) -> None:
    plan = load(name)
    bare = plan.model_copy(update={"cells": [plan.cells[0].model_copy(update={"weights": "", "decoder_weights": ""})]})
    (only,) = expand(bare)
    assert (only.case.method, only.case.role, only.case.sampling) == ("full", "baseline", PUBLISHED[only.case.model])
