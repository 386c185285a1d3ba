"""Janus-Pro: names and shapes of both published layouts, and negative controls of its checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.contract.method import Method
from cachemark.models import janus, llama, raster, sampling
from cachemark.models.janus import SIZES, Janus
from cachemark.models.layers import RMSNorm
from cachemark.models.llama import Llama
from cachemark.models.prompts import Prompts
from cachemark.models.vision.vq import AttnBlock

from .checks import Vector
from .readers.janus import Decoder, Generator, NotingJanus, decoder, generator

MANIFESTS = Path(__file__).parent / "janus"
LAYOUTS = ("official", "converted")
HEAD, USAGE = "language_model.lm_head.weight", "gen_vision_model.quantize.codebook_used"  # in the files, and of no use here
Break = Callable[[Vector, pytest.MonkeyPatch], Any]


def manifest(size: str, layout: str) -> dict[str, list[int]]:
    return json.loads((MANIFESTS / f"manifest_{size}_{layout}.json").read_text())["shapes"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_files(size: str, layout: str) -> None:
    with torch.device("meta"):
        model, images = Janus(SIZES[size], Prompts()), janus.tokenizer()
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    own |= {janus.PREFIX + name: list(tensor.shape) for name, tensor in images.state_dict().items()}
    unused = {HEAD: [102400, SIZES[size].decoder.dim], **({USAGE: [65536]} if layout == "official" else {})}
    published = manifest(size, layout)
    renamed = {janus.official(name): shape for name, shape in published.items()}
    assert len(renamed) == len(published), "two tensors of the file have one name"
    assert renamed == own | unused


def test_every_published_manifest_is_compared() -> None:
    assert {path.name for path in MANIFESTS.iterdir()} == {f"manifest_{size}_{layout}.json" for size in SIZES for layout in LAYOUTS}


# -- negative controls of the generator -------------------------------------------------------------------------------
def rotated_by_pairs(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    def pairs(x: Tensor, turns: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns[:, :, None]
        return torch.view_as_real(turned).flatten(-2)

    patch.setattr(llama, "rotate_halves", pairs)
    return generator(vector)


def another_rope_base(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    turns = Llama.turns
    patch.setattr(Llama, "turns", lambda self, positions: turns(self, positions * 1.01))
    return generator(vector)


def positions_of_the_longest_row(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """Codes of every row count on from the longest prompt of the batch."""
    feed = Janus.feed
    patch.setattr(Janus, "feed", lambda self, fed, step, place, starts: feed(self, fed, step, place, starts.max().expand_as(starts)))
    return generator(vector)


def read_behind_the_prompt(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """The first code is predicted at the end of the longest row, in padding."""
    patch.setattr(raster, "_ragged", lambda layout, step: False)
    return generator(vector)


def silu_in_the_head(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    patch.setattr(janus.ImageHead, "forward", lambda self, x: self.vision_head(F.silu(self.output_mlp_projector(x))))
    return generator(vector)


def codes_from_unit_vectors(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """The embedding of codes normalised, as that of the image tokenizer is."""
    patch.setattr(Janus, "embedded", lambda self, codes: self.gen_aligner(F.normalize(self.gen_embed(codes), dim=-1)))
    return generator(vector)


def head_before_the_final_norm(vector: Vector, _: pytest.MonkeyPatch) -> Generator:
    class Unnormed(NotingJanus):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.decoder.norm.forward = lambda x: x  # type: ignore[method-assign]

    return generator(vector, Unnormed)


def large_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Generator:
    subject = generator(vector)
    for module in subject.model.modules():
        if isinstance(module, RMSNorm):
            module.eps = 1e-3
    return subject


def keys_and_values_swapped(vector: Vector, _: pytest.MonkeyPatch) -> Generator:
    subject = generator(vector)
    for block in subject.model.blocks:
        attention: Any = block.self_attn
        attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj
    return subject


def key_is_lost(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    end_step = Method.end_step

    def losing(method: Method, step: Any) -> None:
        end_step(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    patch.setattr(Method, "end_step", losing)
    return generator(vector)


def padded_to_the_end(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """The unconditional row keeps nothing of its prompt but the first id."""
    patch.setattr(janus, "unconditional", lambda ids, pad: (ids[0], *[pad] * (len(ids) - 1)))
    return generator(vector)


def unconditional_row_that_begins_at_the_image(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """Of two ids, as if padding were not attended."""
    patch.setattr(janus, "unconditional", lambda ids, pad: (ids[0], ids[-1]))
    return generator(vector)


def guided_the_other_way(vector: Vector, patch: pytest.MonkeyPatch) -> Generator:
    """c + (c − u)·w."""
    patch.setattr(raster, "guide", lambda logits, given, place: sampling.guide(
        logits, replace(given, cfg_scale=given.cfg_scale + 1), place))
    return generator(vector)


# -- and of the image tokenizer ---------------------------------------------------------------------------------------
def codes_of_any_length(vector: Vector, patch: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    patch.setattr(subject.model.quantize, "forward", subject.model.quantize.embedding.forward)
    return subject


def group_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    for module in subject.model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-2
    return subject


def no_attention(vector: Vector, patch: pytest.MonkeyPatch) -> Decoder:
    patch.setattr(AttnBlock, "forward", lambda self, x: x)
    return decoder(vector)


def levels_in_the_other_order(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    subject = decoder(vector)
    subject.model.decoder.conv_blocks = subject.model.decoder.conv_blocks[::-1]
    return subject


def nearest_bytes(vector: Vector, _: pytest.MonkeyPatch) -> Decoder:
    def to_uint8(images: Tensor) -> Tensor:
        return ((images + 1) / 2 * 255).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)

    return replace(decoder(vector), to_uint8=to_uint8)


def of(*names: str) -> tuple[str, ...]:
    """Checks of both runs."""
    return tuple(f"{name}_{which}" for name in names for which in "AB")


LOGITS = of("guided", "conditional", "unconditional")
SLOTS = ("slots0_A", *of("slots2"))
CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "small": {
        rotated_by_pairs: (*of("codes", "hidden"), *LOGITS, *SLOTS),
        another_rope_base: (*of("hidden"), *LOGITS, *SLOTS),
        positions_of_the_longest_row: ("guided_A", "conditional_A", "unconditional_A", "hidden_A", "slots0_A", "slots2_A"),
        read_behind_the_prompt: ("guided_A", "conditional_A", "hidden_A"),
        silu_in_the_head: (*of("codes"), *LOGITS),
        codes_from_unit_vectors: (*of("codes", "hidden"), *LOGITS, *SLOTS),
        head_before_the_final_norm: (*of("hidden"), *LOGITS),
        large_norm_eps: (*of("hidden"), *LOGITS, *SLOTS),
        keys_and_values_swapped: (*of("codes", "hidden"), *LOGITS, *SLOTS),
        key_is_lost: (*of("hidden"), *LOGITS, *SLOTS),
        padded_to_the_end: of("codes", "guided", "unconditional"),
        unconditional_row_that_begins_at_the_image: (*of("guided", "unconditional"), *SLOTS),
        guided_the_other_way: of("guided"),
    },
    "small_vq": {
        codes_of_any_length: of("image", "image_bytes"),
        group_norm_eps: of("image"),
        no_attention: of("image", "image_bytes"),
        levels_in_the_other_order: of("image", "image_bytes"),
        nearest_bytes: of("image_bytes"),
    },
}
