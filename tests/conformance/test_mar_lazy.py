"""LazyMAR: negative controls of its checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.masked_layout import MaskedStep
from cachemark.methods import lazymar
from cachemark.methods.lazymar import HeadCache, LazyMAR
from cachemark.methods.masked import partial, schedule
from cachemark.methods.masked.partial import Incremental

from .checks import Vector
from .discovery import DEFAULT
from .readers.mar_lazy import Subject, subject
from .test_mar import flip_orders, guide_by_the_mask_before

VECTOR = Vector.load(DEFAULT / "mar" / "golden_lazy.safetensors")
Break = Callable[[Vector, pytest.MonkeyPatch], Subject]


# -- which passes and tokens ------------------------------------------------------------------------------------------
def later_start(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    return subject(vector, "32", start=6)


def fewer_extra(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    """Forced tokens and 15 are more than the table allows from step 45 of 64 on."""
    return subject(vector, "64", extra=14)


def shifted_table(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    return subject(vector, "32", table=(1.0, *schedule.PUBLISHED[:-1]))


def another_layer(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    return subject(vector, "32", layer=2)


def nothing_is_forced(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(LazyMAR, "forced_score", 1.0)
    return subject(vector, "32")


def compared_with_the_last_full_pass(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    attend = LazyMAR.attend

    def wrong(self: LazyMAR, site: Any, step: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = None if self.values is None or self.full[step.index] else self.values.clone()
        out = attend(self, site, step, q, k, v)
        if before is not None and self.values is not None:
            self.values.copy_(before)
        return out

    patch.setattr(LazyMAR, "attend", wrong)
    return subject(vector, "32")


# -- what is reused ---------------------------------------------------------------------------------------------------
def no_difference(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    sub = torch.sub
    patch.setattr(torch, "sub", lambda a, b, **rest: sub(a, b, **rest).zero_() if "out" in rest else sub(a, b, **rest))
    return subject(vector, "64")


def whole_encoder(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    return subject(vector, "32", encoder_cache=False)


def stale_buffer(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The encoder's buffer keeps the keys of the last full pass: the new tokens alone are written."""
    update = partial.Places.update

    def wrong(self: partial.Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
        if len(self.at) == 6:  # the encoder's, which keeps all blocks
            k, v = (torch.cat((old[:, :, :64], new[:, :, 64:]), 2) for old, new in zip(self.read(block, live), (k, v), strict=True))
        return update(self, block, k, v, places, live)

    patch.setattr(partial.Places, "update", wrong)
    return subject(vector, "32")


def canvas_of_this_pass(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """Older tokens enter the decoder as the encoder gives them now, which is nothing."""
    patch.setattr(Incremental, "canvas", lambda self, step, given: given)
    return subject(vector, "32")


def keys_of_the_skipped_go(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The chosen tokens see each other alone."""

    def alone(self: LazyMAR, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    patch.setattr(LazyMAR, "attend_chosen", alone)
    return subject(vector, "32")


def no_class_for_the_unconditional(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector, "32")
    given.weights["fake_latent"] = torch.zeros_like(given.weights["fake_latent"])
    return given


def another_order(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    flip_orders(patch)
    return subject(vector, "32")


def earlier_guidance(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    guide_by_the_mask_before(patch)
    return subject(vector, "32")


# -- the head ---------------------------------------------------------------------------------------------------------
def another_head_period(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(lazymar, "HEAD_PERIOD", 8)
    return subject(vector)


def one_block_less_is_bridged(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(lazymar, "BRIDGED", range(1, 4))
    return subject(vector)


def no_early_passes(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(HeadCache, "early", staticmethod(lambda step: False))
    return subject(vector)


def one_early_pass_more(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(HeadCache, "early", staticmethod(lambda step: step.inners - 1 - step.inner >= lazymar.EARLY * step.inners - 1))
    return subject(vector)


def unconditional_is_conditional(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The difference of the branches is forgotten."""
    stack = HeadCache.stack

    def wrong(self: HeadCache, step: MaskedStep, tokens: Any, run: Any) -> Tensor:
        out = stack(self, step, tokens, run)
        self.apart.zero_()
        return out

    patch.setattr(HeadCache, "stack", wrong)
    return subject(vector)


def always_cached(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The switch of the head's cache does nothing."""
    plain = LazyMAR.__init__

    def wrong(self: LazyMAR, **knobs: Any) -> None:
        plain(self, **{**knobs, "head_cache": True})

    patch.setattr(LazyMAR, "__init__", wrong)
    return subject(vector)


CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {"lazy": {
    later_start: ("full_passes", "encoder_shapes"),
    fewer_extra: ("kept_counts", "kept"),
    shifted_table: ("kept_counts", "kept", "told"),
    another_layer: ("kept", "scores", "told"),
    nothing_is_forced: ("kept", "told"),
    compared_with_the_last_full_pass: ("scores", "kept"),
    no_difference: ("told", "everywhere", "differences"),
    whole_encoder: ("encoder_shapes", "encoded", "told"),
    stale_buffer: ("encoded", "told"),
    canvas_of_this_pass: ("told", "scores"),
    keys_of_the_skipped_go: ("told",),
    no_class_for_the_unconditional: ("told", "told_in_full"),
    another_order: ("masks",),
    earlier_guidance: ("guidance",),
    another_head_period: ("head_calls_std", "head_tame"),
    one_block_less_is_bridged: ("head_calls_std", "head_tame"),
    no_early_passes: ("head_calls_std", "head_tame"),
    one_early_pass_more: ("head_calls_std",),
    unconditional_is_conditional: ("head_std", "head_tame"),
    always_cached: ("plain_head",),
}}


NIGHTLY = (fewer_extra, another_layer, nothing_is_forced, whole_encoder, canvas_of_this_pass, keys_of_the_skipped_go, another_head_period,
           one_block_less_is_bridged, no_early_passes)


def test_the_published_table_is_that_of_the_code() -> None:
    assert list(schedule.PUBLISHED) == VECTOR.facts["_meta"]["hard_coded"]["retain_ratio"]
    assert VECTOR.facts["_meta"]["hard_coded"]["head_delta_blocks"] == list(lazymar.BRIDGED)
    assert VECTOR.facts["_meta"]["hard_coded"]["head_threshold"] == lazymar.HEAD_PERIOD
