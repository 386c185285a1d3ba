"""The readers follow the file: vectors of other sizes, patches, passes, seeds and labels are read as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from . import made
from .checks import Vector
from .discovery import find, kind_of
from .readers import FAMILIES

MAKERS = {"mar-small": made.mar_small, "mar-lazy": made.mar_lazy, "var-small": made.var_small}
LACKING = {
    "mar-small": {"encoder_block", "decoder_block", "waves", "time_embed", "cond_embed", "head_guided", "mean", "start", "loss_mse",
                  "loss_vb", "loss_loss", "last_conditions"},
    "mar-lazy": {"kept", "scores", "everywhere", "encoded", "differences", "head_calls_std"},
    "var-small": {"logits", "hidden", "maps", "next_maps", "cached_k_block*", "cached_v_block*", "quantised", "restored", "kept"},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    with torch.no_grad():
        return {name: make(folder) for name, make in MAKERS.items()}


def faults(vector: Vector) -> dict[str, str]:
    """What each check that can be run says of a vector; nothing where all is well."""
    kind = FAMILIES[vector.path.parent.name][kind_of(vector.path)]
    with torch.no_grad():
        subject = kind.build(vector)
        return {check.name: check.fault(subject, vector) for check in kind.checks_of(vector.names) if not check.lacking(vector.names)}


@pytest.mark.parametrize("name", MAKERS)
def test_another_configuration_is_read(paths: dict[str, Path], name: str) -> None:
    vector = Vector.load(paths[name])
    assert not "".join(faults(vector).values())
    items = [item for item in find(paths[name].parent.parent) if item.path == paths[name]]
    assert {item.check.name for item in items if item.check and item.lacking} == LACKING[name]
    assert vector.seen == vector.tensors.keys()


def patches_by_columns(vector: Vector) -> None:
    latent = vector.tensors["out/trajX/latent"].unflatten(3, (6, 2)).unflatten(2, (6, 2))
    vector.tensors["out/trajX/latent"] = latent.transpose(3, 5).flatten(4, 5).flatten(2, 3)


def first_class_for_none(vector: Vector) -> None:
    vector.facts["trajectories"][0]["labels"] = [1, 0, 3]


def other_temperature(vector: Vector) -> None:
    vector.facts["psl_variants"]["led"] += ", temperature 0.9"


def more_extra(vector: Vector) -> None:
    vector.facts["_meta"]["hard_coded"]["min_extra"] += 30


def later_start(vector: Vector) -> None:
    vector.facts["_meta"]["hard_coded"]["start_step"] += 1


def other_notes(vector: Vector) -> None:
    vector.facts["_meta"]["notes"] = ["head: both kinds, cfg 1.75, temperature 0.9"]


def an_unlikely_token(vector: Vector) -> None:
    logits = vector.tensors["out/logits_cfg/2"]
    vector.tensors["out/idx/2"] = logits.argmin(-1).int()


def more_guidance(vector: Vector) -> None:
    vector.facts["cfg"] += 0.5


@pytest.mark.parametrize(("name", "change", "noticed"), [
    ("mar-small", patches_by_columns, {"latents"}), ("mar-small", first_class_for_none, {"conditions", "latents"}),
    ("mar-small", other_temperature, {"sampled_led"}), ("mar-lazy", more_extra, {"kept_counts", "told"}),
    ("mar-lazy", later_start, {"full_passes", "encoder_shapes"}), ("mar-lazy", other_notes, {"head_tame", "plain_head"}),
    ("var-small", an_unlikely_token, {"tokens", "image"}), ("var-small", more_guidance, {"guided", "teacher"}),
])
def test_what_the_file_says_is_what_is_checked(
    paths: dict[str, Path], name: str, change: Callable[[Vector], None], noticed: set[str]
) -> None:
    vector = Vector.load(paths[name])
    change(vector)
    assert {check for check, fault in faults(vector).items() if fault} >= noticed


@pytest.mark.parametrize(("name", "change"), [
    ("mar-small", {"mlp_ratio": 2}), ("mar-small", {"decoder_embed_dim": 48}), ("mar-lazy", {"norm_eps": 1e-5}),
])
def test_a_model_that_the_package_cannot_build_is_named(paths: dict[str, Path], name: str, change: dict[str, Any]) -> None:
    vector = Vector.load(paths[name])
    vector.facts.get("_meta", vector.facts)["config"].update(change)
    with pytest.raises(ValueError, match=f"no MAR of this package has.*{next(iter(change))}"):
        faults(vector)


def test_a_head_with_another_cache_is_named(paths: dict[str, Path]) -> None:
    vector = Vector.load(paths["mar-lazy"])
    vector.facts["_meta"]["hard_coded"]["head_threshold"] = 5
    with pytest.raises(ValueError, match="head_threshold"):
        faults(vector)


def test_facts_alone_are_no_vector(tmp_path: Path) -> None:
    (tmp_path / "mar").mkdir()
    (tmp_path / "mar" / "made_small.json").write_text(json.dumps({}))
    assert "No vectors under" in find(tmp_path)[0].problem
