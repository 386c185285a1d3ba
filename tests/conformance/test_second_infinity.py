"""Readers of Infinity on shapes of which no outputs of the authors' code are stored.

The vectors here are **not** the authors': a second implementation makes them, which reproduces the authors' ``golden_small`` first.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cachemark.models.infinity import Infinity
from cachemark.models.infinity_scales import RATIOS
from cachemark.models.vision.bsq import BSQ, BSQConfig

from .checks import LOGITS, Vector, apart, differing_bytes, spread
from .discovery import DEFAULT
from .readers import FAMILIES
from .readers.fastvar import Settings, greedy_bits
from .readers.infinity import config_of, finest_of
from .second_infinity import SecondInfinity

KIND = FAMILIES["infinity"]["small"]
CLOSE = 1e-3  # of a greedy bit to a tie, of which a vector has none
BASE: dict[str, Any] = {"text_channels": 256, "text_maxlen": 16, "vae_base_ch": 32, "vae_ch_mult": [1, 2], "vae_patch_size": 2,
                        "vae_num_res_blocks": 1, "norm_eps": 1e-6, "mlp_ratio": 4.0}
SHAPES: dict[str, dict[str, Any]] = {
    "tall, with scales without guidance": {
        "depth": 6, "embed_dim": 96, "num_heads": 6, "block_chunks": 3, "codebook_dim": 6, "h_div_w": 1.5, "scales": 6,
        "text_lens": [5, 9, 2], "cfg_list": [3.0, 1.0, 2.0, 4.0, 1.0, 3.0], "tau_list": [0.5, 1.0, 0.7, 0.5, 1.0, 0.25]},
    "wide": {"depth": 2, "embed_dim": 64, "num_heads": 2, "block_chunks": 1, "codebook_dim": 5, "h_div_w": 0.571, "scales": 5,
             "text_lens": [4], "cfg_list": [3.0] * 5, "tau_list": [0.5] * 5},
    "wide, without guidance": {"depth": 3, "embed_dim": 128, "num_heads": 8, "block_chunks": 3, "codebook_dim": 8, "h_div_w": 1 / 3,
                               "scales": 5, "text_lens": [3, 7], "cfg_list": [1.0] * 5, "tau_list": [1.0] * 5},
}


def facts_of(shape: str) -> dict[str, Any]:
    config = {**BASE, **SHAPES[shape]}
    maps = RATIOS[min(RATIOS, key=lambda ratio: abs(ratio - config["h_div_w"]))]
    return {"config": {**config, "scale_schedule": [[1, *grid] for grid in maps[: config.pop("scales")]]},
            "notes": {"origin": "a second implementation in the tests, no output of the authors' code"}}


def drawn_weights(facts: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Return random weights under the names of a file, as large as a trained model's activations need."""
    config, draw = config_of(facts), torch.Generator().manual_seed(seed)
    c = facts["config"]
    image = BSQ(BSQConfig(c["vae_base_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"], config.scales, config.width))
    shapes = {**{f"var/{name}": tensor for name, tensor in Infinity(config).state_dict().items()},
              **{f"vae/{name}": tensor for name, tensor in image.state_dict().items()}}
    weights = {}
    for name, tensor in shapes.items():
        values = torch.randn(tensor.shape, generator=draw)
        fans = tensor[0].numel() if tensor.dim() in (2, 4) and "ada_gss" not in name else 100
        norm = name.endswith(".weight") and tensor.dim() == 1
        weights[name] = values * fans**-0.5 + (1 if norm or name.endswith("scale_mul_1H11") else 0)
    return weights


@functools.cache
def made(shape: str, folder: Path, seed: int = 0) -> Vector:
    """Write a vector of a shape in the layout of the authors' files, and read it."""
    facts, path = facts_of(shape), folder / f"{shape.replace(' ', '-').replace(',', '')}_small.safetensors"
    weights, lengths = drawn_weights(facts, seed), facts["config"]["text_lens"]
    text = torch.randn(sum(lengths), facts["config"]["text_channels"], generator=torch.Generator().manual_seed(seed + 1))
    second = SecondInfinity(weights, facts["config"], finest_of(config_of(facts).scales, facts["config"]["h_div_w"]))
    with torch.no_grad():
        out = second.generate(text.split(lengths))
    save_file({**{f"weights/{name}": tensor for name, tensor in weights.items()}, "text/kv": text,
               **{name: tensor.contiguous() for name, tensor in out.items()}}, path)
    path.with_suffix(".json").write_text(json.dumps(facts))
    return Vector.load(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("infinity")


def gap(vector: Vector) -> float:
    """Return by how little a greedy bit was decided."""
    pairs = [vector[name] for name, _ in vector.matching("out/bit_logits_cfg/*")]
    return min(float((pair[..., 0] - pair[..., 1]).abs().min()) for pair in pairs)


@torch.no_grad()
def test_the_second_implementation_reproduces_the_authors_outputs() -> None:
    vector = Vector.load(DEFAULT / "infinity" / "golden_small.safetensors")
    config, texts = vector.facts["config"], vector["text/kv"].split(vector.facts["config"]["text_lens"])
    second = SecondInfinity(vector.weights(), config, (64, 64))
    out = second.generate(texts)
    stated = {name for name in vector.tensors if name.startswith(("out/", "rope"))}
    assert out.keys() == stated
    for name, values in out.items():
        if name == "out/image_uint8_bgr":
            assert differing_bytes(values, vector[name]) < 1e-3
        else:
            assert apart(values, vector[name]) < (LOGITS if values.is_floating_point() else 1e-9), name
    second.rounding = True
    rounded = second.generate(texts, [vector[name] for name, _ in vector.matching("out/bits/*")])
    for scale in range(4):
        assert spread(rounded[f"out/logits_pre/{scale}"], vector[f"out_bf16ca/logits_pre/{scale}"]) < 4e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reader_reads_any_shape(shape: str, folder: Path) -> None:
    vector = made(shape, folder)
    assert gap(vector) > CLOSE, "a tie that rounding decides"
    subject = KIND.build(vector)
    checks = [check for check in KIND.checks_of(vector.names) if not check.lacking(vector.names)]
    assert {check.name.rstrip("0123456789") for check in checks} == {
        "bits", "guided", "logits", "hidden", "codes", "next_maps", "summed", "image", "image_bytes", "rotations", "cached_k_block",
        "cached_v_block"}
    with torch.no_grad():
        assert not [fault for check in checks if (fault := check.fault(subject, vector))]


def without_pruning(vector: Vector) -> Vector:
    """Return a vector of FastVAR that prunes nothing, for the first text of a vector, whose bits it generates."""
    maps = [tuple(grid) for _, *grid in vector.facts["config"]["scale_schedule"]]
    names = [str(rows) if rows == columns else f"{rows}x{columns}" for rows, columns in maps]
    facts = {"config": {**vector.facts["config"], "weights": vector.path.stem}, "settings": {"plain": {
        "sides": maps, "scales that run": names, "prompt": 0, "prune": {names[-1]: 1e-6}, "layers": [0], "cache side": names[0]}}}
    bits = {f"plain/{how}/bits/{name}": vector[f"out/bits/{scale}"][0].flatten(0, 2)
            for how in ("forced", "greedy") for scale, name in enumerate(names)}
    return Vector(vector.path.with_name("plain_fastvar.safetensors"), facts, bits)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reader_of_rivals_reads_any_shape(shape: str, folder: Path) -> None:
    """Greedy bits depend on the guidance of every scale."""
    vector = made(shape, folder)
    rival, texts = without_pruning(vector), len(vector.facts["config"]["text_lens"])
    subject = Settings(rival)
    (check,) = [check for check in FAMILIES["infinity"]["fastvar"].checks if not check.lacking(rival.names)]
    with torch.no_grad():
        assert (check.name, check.fault(subject, rival)) == ("greedy_bits", "")
        for name, scale in vector.matching("out/logits_pre/*"):
            expected = vector[name][::texts]  # the row of the first text, and the unconditional one
            assert apart(subject.logits("plain", int(scale))[: len(expected)], expected) < LOGITS, name


def test_the_reader_of_rivals_notices_another_guidance(folder: Path) -> None:
    rival = without_pruning(made("tall, with scales without guidance", folder))
    rival.facts["config"]["cfg_list"] = [3.0] * 6
    with torch.no_grad():
        assert greedy_bits(Settings(rival), rival) > 0


@pytest.mark.parametrize(("shape", "change", "noticed"), [
    ("wide", {"h_div_w": 1.0}, "rotations hidden logits guided"),
    ("tall, with scales without guidance", {"h_div_w": 1.25}, "rotations hidden logits guided"),
    ("tall, with scales without guidance", {"cfg_list": [3.0] * 6}, "guided logits"),
    ("tall, with scales without guidance", {"tau_list": [0.5] * 6}, "guided"),
    ("tall, with scales without guidance", {"num_heads": 3}, "hidden logits"),
])
def test_other_facts_than_the_files_are_noticed(shape: str, change: dict[str, Any], noticed: str, folder: Path) -> None:
    vector = made(shape, folder)
    other = Vector(vector.path, {"config": {**vector.facts["config"], **change}}, {
        name: tensor[:, :3] if "scale_mul" in name and "num_heads" in change else tensor for name, tensor in vector.tensors.items()})
    subject, checks = KIND.build(other), {check.name: check for check in KIND.checks_of(vector.names)}
    with torch.no_grad():
        assert all(checks[name].fault(subject, other) for name in noticed.split())


def test_sizes_that_the_published_models_do_not_have_are_refused(folder: Path) -> None:
    vector = made("wide", folder)
    with pytest.raises(ValueError, match="another mlp_ratio than 4"):
        KIND.build(Vector(vector.path, {"config": {**vector.facts["config"], "mlp_ratio": 3.0}}, vector.tensors))
    with pytest.raises(ValueError, match="vae_patch_size 4 does not follow from 2 levels"):
        KIND.build(Vector(vector.path, {"config": {**vector.facts["config"], "vae_patch_size": 4}}, vector.tensors))
