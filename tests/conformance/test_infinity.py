"""Infinity: names and shapes of the published files, and negative controls of its checks."""

from __future__ import annotations

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

from cachemark.models import infinity, sampling, scales, var
from cachemark.models.infinity import BUFFERS, SIZES, Infinity, TextAttention
from cachemark.models.layers import RMSNorm
from cachemark.models.scales import ModulatedBlock
from cachemark.models.var import VARAttention
from cachemark.models.vision import bsq
from cachemark.models.vision.bsq import BSQ, BitQuantizer

from .checks import Vector
from .readers import infinity as reader
from .readers.infinity import Subject, subject

MANIFESTS = Path(__file__).parent / "infinity"
Break = Callable[[Vector, pytest.MonkeyPatch], Subject]


def manifest(name: str) -> dict[str, Any]:
    return json.loads((MANIFESTS / f"manifest_{name}.json").read_text())


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_file(size: str) -> None:
    expected, config = manifest(size.lower()), SIZES[size]
    with torch.device("meta"):
        model = Infinity(config)
    shapes = {name: shape for name, shape in expected["shapes"].items() if not any(fnmatchcase(name, buffer) for buffer in BUFFERS)}
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == shapes
    assert sum(p.numel() for p in model.parameters()) == expected["n_params"]
    assert (config.depth, config.dim, config.heads, config.chunks) == tuple(
        expected[name] for name in ("depth", "embed_dim", "num_heads", "block_chunks"))


def test_names_and_shapes_of_the_image_tokenizer() -> None:
    expected = manifest("vae_d32")
    with torch.device("meta"):
        model = BSQ()
    renamed = {bsq.official(name): shape for name, shape in expected["shapes"].items() if name not in bsq.UNUSED}
    assert len(renamed) == len(expected["shapes"]) - len(bsq.UNUSED), "two tensors of the file have one name"
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == renamed
    assert {bsq.official(name) for name in renamed} == renamed.keys(), "names without the extra level must stay as they are"
    assert sum(p.numel() for p in model.parameters()) == expected["n_params"]
    assert sum(p.numel() for p in model.decoder.parameters()) == expected["params_decoder"]


def test_every_published_manifest_is_compared() -> None:
    names = {path.stem.removeprefix("manifest_") for path in MANIFESTS.iterdir()}
    assert names == {size.lower() for size in SIZES} | {"vae_d32"}


# -- negative controls --------------------------------------------------------------------------------------------------
def positions_of_the_map_itself(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """Rows and columns as they are counted in each map."""
    infinity.rope_table.cache_clear()
    patch.setattr(infinity, "rope_table", lambda head_dim, sides, base, device: torch.cat(
        [_turns(head_dim, side, 1.0, base) for side in sides]))
    return subject(vector)


def _turns(head_dim: int, side: int, step: float, base: float) -> Tensor:
    half = head_dim // 2
    turn = (torch.arange(side) * step)[:, None] * base ** (-torch.arange(0, half, 2) / half)
    angles = torch.cat((turn[:, None].expand(side, side, -1), turn[None].expand(side, side, -1)), -1).flatten(0, 1)
    return torch.polar(torch.ones_like(angles), angles)


def another_finest_map(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """Positions in units of the finest map of this image."""
    patch.setattr(reader, "rope_table", lambda head_dim, sides, base, device: torch.cat(
        [_turns(head_dim, side, sides[-1] / side, base) for side in sides]))
    return subject(vector)


def rotated_by_halves(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def halves(x: Tensor, turns: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = turns.real[:, None], turns.imag[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    patch.setattr(var, "rotate_pairs", halves)
    return subject(vector)


def keys_are_not_normalised(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    scaled = VARAttention.scaled
    patch.setattr(VARAttention, "scaled", lambda self, q, k: (scaled(self, q, k)[0], k))
    return subject(vector)


def values_without_bias(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for block in given.model.stacked:
        block.sa.v_bias.data.zero_()
    return given


def scales_and_shifts_swapped(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    shades = ModulatedBlock.modulation
    patch.setattr(ModulatedBlock, "modulation", lambda self, *given: shades(self, *given)[:, [0, 1, 4, 5, 2, 3]])
    return subject(vector)


def padding_is_seen(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The shorter text's padding is attended."""
    read = Infinity.read
    patch.setattr(Infinity, "read", lambda self, *given: ((found := read(self, *given))[0], torch.ones_like(found[1])))
    return subject(vector)


def whole_unconditional_text(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The unconditional row sees as many learned vectors as the longest text has."""
    read = Infinity.read

    def longer(self: Infinity, labels: Any, copies: int) -> tuple[Tensor, Tensor]:
        features, seen = read(self, labels, copies)
        seen[len(labels) :] = True
        return features, seen

    patch.setattr(Infinity, "read", longer)
    return subject(vector)


def text_not_normalised(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    given.model.text_norm = nn.Identity()  # type: ignore[assignment]
    return given


def text_attention_without_bias(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for module in given.model.modules():
        if isinstance(module, TextAttention):
            module.v_bias.data.zero_()
    return given


def no_level_embedding(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    given.model.lvl_embed.weight.data.zero_()
    return given


def guided_the_other_way(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """c + (c − u)·s."""
    patch.setattr(infinity, "guide", lambda logits, given, place: sampling.guide(
        logits, replace(given, cfg_scale=given.cfg_scale + 1), place))
    return subject(vector)


def head_without_its_own_modulation(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(scales.HeadNorm, "forward", lambda self, x, cond: F.layer_norm(x, x.shape[-1:], eps=self.eps))
    return subject(vector)


def minus_for_one(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    codes = BitQuantizer.codes
    patch.setattr(BitQuantizer, "codes", lambda self, tokens, scale: -codes(self, tokens, scale))
    return subject(vector)


def resized_by_area(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(bsq, "resized", lambda x, side: F.interpolate(x, size=(side, side), mode="area"))
    return subject(vector)


def next_map_by_columns(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    next_map = BitQuantizer.next_map
    patch.setattr(BitQuantizer, "next_map", lambda self, f, scale: next_map(self, f.mT, scale))
    return subject(vector)


def group_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for module in given.images.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-2
    return given


def red_first(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    image = given.images.image
    given.images.image = lambda f_hat: image(f_hat).flip(1)  # type: ignore[method-assign]
    return given


def large_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for module in given.model.modules():
        if isinstance(module, RMSNorm | ModulatedBlock | scales.HeadNorm):
            module.eps = 1e-2
    return given


def text_read_in_fp32(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """Where the authors round to bf16."""
    patch.setattr(reader, "in_bf16", lambda mixed: mixed)
    return subject(vector)


PASSES = ("logits", "guided", "hidden")
CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {"small": {
    positions_of_the_map_itself: (*PASSES, "cached_k_block0"),
    another_finest_map: ("rotations",),
    rotated_by_halves: (*PASSES, "cached_k_block0"),
    keys_are_not_normalised: (*PASSES, "cached_k_block0"),
    values_without_bias: (*PASSES, "cached_v_block0"),
    scales_and_shifts_swapped: (*PASSES, "cached_v_block0", "bits"),
    padding_is_seen: PASSES,
    whole_unconditional_text: PASSES,
    text_not_normalised: PASSES,
    text_attention_without_bias: PASSES,
    no_level_embedding: (*PASSES, "cached_k_block0", "cached_v_block0"),
    guided_the_other_way: ("guided",),
    head_without_its_own_modulation: ("logits", "guided", "bits"),
    minus_for_one: ("codes", "next_maps", "summed", "image", "image_bytes", "logits", "hidden"),
    resized_by_area: ("next_maps", "summed", "image"),
    next_map_by_columns: ("next_maps", "logits"),
    group_norm_eps: ("image",),
    red_first: ("image", "image_bytes"),
    large_norm_eps: PASSES,
    text_read_in_fp32: ("rounded",),
}}
