"""VAR: names and shapes of the published files, and negative controls of its checks."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.core.spec import Sampling
from cachemark.models import sampling, scales, var
from cachemark.models.catalogue.next_scale import build
from cachemark.models.var import BUFFERS, SIZES, VARAttention, VARBlock
from cachemark.models.vision.autoencoder import JointAttnBlock
from cachemark.models.vision.msvq import MSVQ, USED, MSVQConfig, MultiScaleQuantizer
from cachemark.models.vision.vq import Downsample

from .checks import Vector
from .readers.var import Subject, subject, tokenizer

MANIFESTS = Path(__file__).parent / "var"
Break = Callable[[Vector, pytest.MonkeyPatch], Any]


def manifest(name: str) -> dict[str, Any]:
    return json.loads((MANIFESTS / f"manifest_{name}.json").read_text())


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_file(size: str) -> None:
    expected = manifest(size.replace("-", "_"))
    with torch.device("meta"):
        model = build(SIZES[size])
    shapes = {name: shape for name, shape in expected["shapes"].items() if not any(fnmatchcase(name, buffer) for buffer in BUFFERS)}
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == shapes
    assert sum(p.numel() for p in model.parameters()) == expected["n_params"]
    assert list(SIZES[size].sides) == expected["patch_nums"]
    assert (SIZES[size].shared_aln, SIZES[size].l2_norm) == (expected["shared_aln"], expected["attn_l2_norm"])


@pytest.mark.parametrize("name", ["vqvae", "vqvae_512"])
def test_names_and_shapes_of_the_tokenizer(name: str) -> None:
    expected = manifest(name)
    with torch.device("meta"):
        model = MSVQ(MSVQConfig(sides=tuple(expected["patch_nums"])))
    shapes = {key: shape for key, shape in expected["shapes"].items() if key not in USED}
    assert {key: list(tensor.shape) for key, tensor in model.state_dict().items()} == shapes
    assert sum(p.numel() for p in model.parameters()) == expected["n_params"]


def test_every_published_size_is_known() -> None:
    names = {path.stem.removeprefix("manifest_") for path in MANIFESTS.glob("manifest_*.json")}
    assert names == {size.replace("-", "_") for size in SIZES} | {"vqvae", "vqvae_512"}


# -- negative controls of the transformer -----------------------------------------------------------------------------
def scale_not_clamped(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(var, "STEEPEST", 99.0)
    return subject(vector)


def usual_softmax_scale(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """Where queries are not normalised, 1/√d instead of 0.25/√d."""
    scaled = VARAttention.scaled
    patch.setattr(VARAttention, "scaled", lambda self, q, k: scaled(self, q, k) if self.l2_norm else (q, k))
    return subject(vector)


def scales_and_shifts_swapped(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    modulation = VARBlock.modulation
    patch.setattr(VARBlock, "modulation", lambda self, *given: modulation(self, *given)[:, [0, 1, 4, 5, 2, 3]])
    return subject(vector)


def head_from_the_shared_projection(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(scales.HeadNorm, "forward", lambda self, x, cond: F.layer_norm(x, x.shape[-1:], eps=self.eps))
    return subject(vector)


def guided_alike_in_every_scale(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(var, "guide_scale", lambda logits, sampling_, index, total: sampling.guide_scale(logits, sampling_, total - 1, total))
    return subject(vector)


def no_level_embedding(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for model in given.models.values():
        model.lvl_embed.weight.data.zero_()
    return given


def keys_are_not_normalised(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    scaled = VARAttention.scaled
    patch.setattr(VARAttention, "scaled", lambda self, q, k: (scaled(self, q, k)[0], k))
    return subject(vector)


def values_without_bias(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for block in given.models[""].blocks:
        block.attn.v_bias.data.zero_()
    return given


def one_phi_for_all_scales(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    """One convolution for all scales."""
    given = subject(vector)
    for model in given.models.values():
        model.quantizer._phi = [0] * len(model.quantizer._phi)
    return given


def nearest_instead_of_bicubic(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def spread(self: MultiScaleQuantizer, codes: Tensor, scale: int) -> Tensor:
        side = self.sides[scale]
        h = F.embedding(codes, self.embedding.weight).transpose(1, 2).unflatten(2, (side, side))
        return F.interpolate(h, size=(self.sides[-1],) * 2, mode="nearest")

    patch.setattr(MultiScaleQuantizer, "spread", spread)
    return subject(vector)


def next_map_by_columns(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    shrunk = MultiScaleQuantizer.shrunk
    patch.setattr(MultiScaleQuantizer, "shrunk", lambda self, f, scale: shrunk(self, f.mT, scale))
    return subject(vector)


def brighter(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    return replace(given, decode=lambda f_hat: given.decode(f_hat) + 0.01)


def top_p_drops_one_more(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)

    def wrong(logits: Tensor, settings: Sampling) -> Tensor:
        kept = given.filter_logits(logits, settings)
        last = kept.masked_fill(kept.isinf(), float("inf")).argmin(-1, keepdim=True)
        return kept.scatter(-1, last, float("-inf"))

    return replace(given, filter_logits=wrong)


# -- and of the full-size tokenizer -----------------------------------------------------------------------------------
@functools.cache
def full(path: Path) -> MSVQ:
    return tokenizer(Vector.load(path))


def no_attention(vector: Vector, patch: pytest.MonkeyPatch) -> MSVQ:
    patch.setattr(JointAttnBlock, "forward", lambda self, x: x)
    return full(vector.path)


def group_norm_eps(vector: Vector, patch: pytest.MonkeyPatch) -> MSVQ:
    for module in full(vector.path).modules():
        if isinstance(module, nn.GroupNorm):
            patch.setattr(module, "eps", 1e-2)
    return full(vector.path)


def padded_on_all_sides(vector: Vector, patch: pytest.MonkeyPatch) -> MSVQ:
    for module in full(vector.path).modules():
        if isinstance(module, Downsample):
            patch.setattr(module, "forward", lambda x, conv=module.conv: F.conv2d(x, conv.weight, conv.bias, stride=2, padding=1))
    return full(vector.path)


def one_phi(vector: Vector, patch: pytest.MonkeyPatch) -> MSVQ:
    patch.setattr(full(vector.path).quantize, "_phi", [0] * 4)
    return full(vector.path)


CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "small": {
        scale_not_clamped: ("logits", "guided", "hidden", "teacher"),
        usual_softmax_scale: ("logits", "guided"),
        scales_and_shifts_swapped: ("logits", "guided", "hidden", "tokens", "maps", "next_maps", "image", "cached_v_block0", "teacher"),
        head_from_the_shared_projection: ("logits", "guided", "tokens"),
        guided_alike_in_every_scale: ("guided",),
        no_level_embedding: ("logits", "hidden", "cached_k_block0", "cached_v_block0", "teacher"),
        keys_are_not_normalised: ("logits", "hidden", "cached_k_block0", "teacher"),
        values_without_bias: ("hidden", "cached_v_block0"),
        one_phi_for_all_scales: ("maps", "image", "restored", "quantised"),
        nearest_instead_of_bicubic: ("maps", "next_maps", "quantised", "restored"),
        next_map_by_columns: ("next_maps", "quantised", "restored"),
        brighter: ("image",),
        top_p_drops_one_more: ("kept",),
    },
    "vqvae_full": {
        no_attention: ("image", "latents", "again"),
        group_norm_eps: ("image", "latents", "again"),
        padded_on_all_sides: ("latents", "tokens"),
        one_phi: ("again", "tokens"),
    },
}
NIGHTLY = tuple(CONTROLS["vqvae_full"])  # the full-size tokenizer takes seconds to make
