"""Lumina-mGPT: names and shapes of the published files, and negative controls of its checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cachemark.models import llama, lumina, raster, sampling
from cachemark.models.llama import ChannelNorm, Llama
from cachemark.models.lumina import SIZES, Lumina
from cachemark.models.prompts import Prompts
from cachemark.models.vision.vq import AttnBlock
from cachemark.models.vision.vqgan import VQGAN

from .checks import Vector
from .readers import lumina as reader
from .readers.lumina import Decoder, Generator, NotingLumina, decoder

MANIFESTS = Path(__file__).parent / "lumina"
Break = Callable[[Vector, pytest.MonkeyPatch], Any]


def manifest(name: str) -> dict[str, list[int]]:
    return json.loads((MANIFESTS / f"manifest_{name}.json").read_text())["shapes"]


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_folder(size: str) -> None:
    with torch.device("meta"):
        model = Lumina(SIZES[size], Prompts())
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest("7B")


def test_names_and_shapes_of_the_image_tokenizer() -> None:
    with torch.device("meta"):
        model = VQGAN(lumina.TOKENIZER)
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest("vqgan")


# -- negative controls of the generator -------------------------------------------------------------------------------
def rotated_by_pairs(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    def pairs(x: Tensor, turns: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns[:, :, None]
        return torch.view_as_real(turned).flatten(-2)

    patch.setattr(llama, "rotate_halves", pairs)
    return Generator(vector)


def queries_and_keys_not_normalised(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    patch.setattr(ChannelNorm, "forward", lambda self, x: x)
    return Generator(vector)


def norm_without_bias(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    forward = ChannelNorm.forward
    patch.setattr(ChannelNorm, "forward", lambda self, x: forward(self, x) - self.bias)
    return Generator(vector)


def positions_of_the_longest_row(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    feed = Lumina.feed
    patch.setattr(NotingLumina, "feed", lambda self, fed, step, place, starts: feed(
        self, fed, step, place, starts.amax().expand_as(starts) if step.count else starts))
    return Generator(vector)


def unconditional_row_with_the_text(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """As long as the other, its text replaced by the separator."""
    def padded(config: Any, prompts: Prompts) -> NotingLumina:
        ids = prompts.conditional[0]
        return NotingLumina(config, Prompts((ids,), ((ids[0], *[config.ids.separator] * (len(ids) - 4), *ids[-3:]),)))

    return Generator(vector, padded)


def guided_the_other_way(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """c + (c − u)·g."""
    patch.setattr(raster, "guide", lambda logits, given, place: sampling.guide(
        logits, replace(given, cfg_scale=given.cfg_scale + 1), place))
    return Generator(vector)


def lines_end_one_too_early(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    allowed = Lumina.allowed
    patch.setattr(NotingLumina, "allowed", lambda self, logits, place: allowed(self, logits, place + 1))
    return Generator(vector)


def text_is_allowed(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    patch.setattr(NotingLumina, "allowed", lambda self, logits, place: logits)
    return Generator(vector)


def fewer_tokens_kept(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """Three of the most likely."""
    patch.setattr(reader, "filter_logits", lambda logits, given: sampling.filter_logits(logits, replace(given, top_k=3)))
    return Generator(vector)


def large_norm_eps(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    patch.setattr(llama, "QK_NORM_EPS", 0.1)
    return Generator(vector)


def head_before_the_final_norm(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    class Bare(NotingLumina):
        def load_state_dict(self, *given: Any, **more: Any) -> Any:
            found = super().load_state_dict(*given, **more)
            assert isinstance(self.model, Llama)
            self.model.norm = nn.Identity()  # type: ignore[assignment]
            return found

    return Generator(vector, Bare)


# -- and of the image tokenizer ---------------------------------------------------------------------------------------
def group_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    for module in subject.model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-2
    return subject


def no_attention(vector: Vector, patch: pytest.MonkeyPatch) -> Decoder:
    patch.setattr(AttnBlock, "forward", lambda self, x: x)
    return decoder(vector)


def unit_code_vectors(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    weight = subject.model.quantize.embedding.weight.data
    weight.copy_(nn.functional.normalize(weight, dim=-1))
    return subject


def height_and_width_swapped(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    return replace(subject, grids={which: grid[::-1] for which, grid in subject.grids.items()})


def nearest_bytes(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    def to_uint8(images: Tensor) -> Tensor:
        return ((images.clamp(-1, 1) + 1) / 2 * 255).round().permute(0, 2, 3, 1).to(torch.uint8)

    return replace(decoder(vector), to_uint8=to_uint8)


def of(*names: str) -> tuple[str, ...]:
    """Checks of both runs."""
    return tuple(f"{name}_{which}" for name in names for which in "AB")


BRANCHES = of("guided", "conditional", "unconditional")
SLOTS = ("slots0_A", *of("slots2"))
CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "small": {
        rotated_by_pairs: (*BRANCHES, *SLOTS, "prefill_B"),
        queries_and_keys_not_normalised: (*BRANCHES, *SLOTS, "prefill_B"),
        norm_without_bias: (*BRANCHES, *SLOTS),
        positions_of_the_longest_row: (*of("guided", "unconditional"), *SLOTS),
        unconditional_row_with_the_text: (*of("codes", "guided", "unconditional"), *SLOTS),
        guided_the_other_way: of("guided"),
        lines_end_one_too_early: of("codes", "guided", "kept"),
        text_is_allowed: of("guided", "kept"),
        fewer_tokens_kept: of("kept"),
        large_norm_eps: (*BRANCHES, *SLOTS),
        head_before_the_final_norm: (*BRANCHES, "prefill_B"),
    },
    "small_vq": {
        group_norm_eps: of("image"),
        no_attention: of("image", "image_bytes"),
        unit_code_vectors: of("image", "image_bytes"),
        height_and_width_swapped: ("image_A", "image_bytes_A"),
        nearest_bytes: of("image_bytes"),
    },
}
