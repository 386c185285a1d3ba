"""Negative controls: every check must notice a model that is wrong in a way people get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.models import llamagen
from cachemark.models.layers import RMSNorm
from cachemark.models.llamagen import LlamaGen
from cachemark.models.vision.vq import AttnBlock

from .checks import Vector
from .readers import FAMILIES
from .readers.llamagen import Tokenizer, Transformer, sampling_of, transformer

Break = Callable[[Vector, pytest.MonkeyPatch], Any]
SMALL, SMALL_VQ = FAMILIES["llamagen"]["small"], FAMILIES["llamagen"]["small_vq"]


# -- the transformer --------------------------------------------------------------------------------------------------
class IdentityAtTheClass(LlamaGen):
    """The class position is rotated by nothing instead of being multiplied by zero."""

    @property
    def rope(self) -> Tensor:
        return torch.cat((torch.ones_like(super().rope[:1]), super().rope[1:]))


class ColumnsFirst(LlamaGen):
    """The first half of the pairs turns by the column."""

    @property
    def rope(self) -> Tensor:
        half = super().rope.size(1) // 2
        return super().rope.roll(half, 1)


def identity_at_the_class(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    return transformer(vector, IdentityAtTheClass)


def columns_first(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    return transformer(vector, ColumnsFirst)


def rotate_halves(vector: Vector, patch: pytest.MonkeyPatch) -> Transformer:
    def halves(x: Tensor, angles: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = angles.real[:, None], angles.imag[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    patch.setattr(llamagen, "rotate_pairs", halves)
    return transformer(vector)


def small_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    subject = transformer(vector)
    for module in subject.model.modules():
        if isinstance(module, RMSNorm):
            module.eps = 1e-6
    return subject


def keys_and_values_swapped(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    subject = transformer(vector)
    for layer in subject.model.layers:
        q, k, v = layer.attention.wqkv.weight.data.chunk(3)
        layer.attention.wqkv.weight.data = torch.cat((q, v, k))
    return subject


def key_is_lost(vector: Vector, patch: pytest.MonkeyPatch) -> Transformer:
    """The cache keeps one entry too few; the uncached pass is right."""
    end_step = Method.end_step

    def losing(method: Method, step: Any) -> None:
        end_step(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    patch.setattr(Method, "end_step", losing)
    return transformer(vector)


def another_null_class(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    subject = transformer(vector)
    subject.model.config = replace(subject.model.config, classes=subject.model.config.classes - 1)
    return subject


def null_row_of_another_class(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    subject = transformer(vector)
    table = subject.model.cls_embedding.embedding_table.weight.data
    table[-1] = table[0]
    return subject


def guided_without_end(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    def sampling(vector: Vector, run: str) -> Sampling:
        return replace(sampling_of(vector, run), cfg_interval=-1)

    return replace(transformer(vector), sampling=sampling)


def guided_without_being_asked(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    def sampling(vector: Vector, run: str) -> Sampling:
        return replace(sampling_of(vector, run), cfg_scale=vector.facts["cfg_scale"])

    return replace(transformer(vector), sampling=sampling)


def top_p_drops_the_crossing_token(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    right = transformer(vector)

    def wrong(logits: Tensor, sampling: Sampling) -> Tensor:
        kept = right.filter_logits(logits, sampling)
        if sampling.top_p == 1:
            return kept
        last = kept.masked_fill(kept.isinf(), float("inf")).argmin(-1, keepdim=True)
        return kept.scatter(-1, last, float("-inf"))

    return replace(right, filter_logits=wrong)


def top_k_keeps_one_more(vector: Vector, _: pytest.MonkeyPatch) -> Transformer:
    right = transformer(vector)

    def wrong(logits: Tensor, sampling: Sampling) -> Tensor:
        return right.filter_logits(logits, replace(sampling, top_k=sampling.top_k + 1 if sampling.top_k else 0))

    return replace(right, filter_logits=wrong)


# -- the tokenizer's decoder ------------------------------------------------------------------------------------------
def codes_of_any_length(vector: Vector, patch: pytest.MonkeyPatch) -> Tokenizer:
    subject = SMALL_VQ.build(vector)
    patch.setattr(subject.model.quantize, "forward", subject.model.quantize.embedding.forward)
    return subject


def group_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> Tokenizer:
    subject = SMALL_VQ.build(vector)
    for module in subject.model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-5
    return subject


def no_attention(vector: Vector, patch: pytest.MonkeyPatch) -> Tokenizer:
    patch.setattr(AttnBlock, "forward", lambda self, x: x)
    return SMALL_VQ.build(vector)


def transposed_grid(vector: Vector, patch: pytest.MonkeyPatch) -> Tokenizer:
    subject = SMALL_VQ.build(vector)
    right = subject.model.vectors
    patch.setattr(subject.model, "vectors", lambda codes, grid: right(codes, grid).transpose(2, 3))
    return subject


def truncated_half_a_step_lower(vector: Vector, _: pytest.MonkeyPatch) -> Tokenizer:
    """The common (x + 1)·127.5, whose truncation is not that of 127.5·x + 128."""

    def to_uint8(images: Tensor) -> Tensor:
        return ((images + 1) * 127.5).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)

    return replace(SMALL_VQ.build(vector), to_uint8=to_uint8)


def antialiased(vector: Vector, _: pytest.MonkeyPatch) -> Tokenizer:
    def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(images, size=size, mode="bicubic", align_corners=False, antialias=True)

    return replace(SMALL_VQ.build(vector), resize=resize)


LOGITS = ("logits_cached", "logits_null", "logits_full", "logits_train", "guided_logits")
HIDDEN = ("hidden_first", "hidden_last")
GREEDY = ("greedy_cfg", "greedy_cfg_interval", "greedy_nocfg")
CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "small": {
        identity_at_the_class: ("rope", *LOGITS, *HIDDEN, *GREEDY, "train_loss", "slot_keys"),
        columns_first: ("rope", *LOGITS, *HIDDEN, *GREEDY, "train_loss", "slot_keys"),
        rotate_halves: (*LOGITS, *HIDDEN, *GREEDY, "train_loss", "slot_keys"),
        small_norm_eps: (*LOGITS, *HIDDEN, "train_loss", "slot_keys", "slot_values"),
        keys_and_values_swapped: (*LOGITS, *HIDDEN, *GREEDY, "slot_keys", "slot_values"),
        key_is_lost: ("logits_cached", "logits_null", "guided_logits", *GREEDY, "slot_keys", "slot_values"),
        another_null_class: ("guided_logits", "greedy_cfg", "greedy_cfg_interval"),
        null_row_of_another_class: ("logits_null", "guided_logits"),
        guided_without_end: ("greedy_cfg_interval",),
        guided_without_being_asked: ("greedy_nocfg",),
        top_p_drops_the_crossing_token: ("filters",),
        top_k_keeps_one_more: ("filters",),
    },
    "small_vq": {
        codes_of_any_length: ("code_vectors", "image", "image_bytes", "bicubic", "bicubic_bytes"),
        group_norm_eps: ("image", "bicubic"),
        no_attention: ("image", "image_bytes", "bicubic", "bicubic_bytes"),
        transposed_grid: ("code_vectors", "image", "image_bytes", "bicubic", "bicubic_bytes"),
        truncated_half_a_step_lower: ("image_bytes", "bicubic_bytes"),
        antialiased: ("bicubic", "bicubic_bytes"),
    },
}
