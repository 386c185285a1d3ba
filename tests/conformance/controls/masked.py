"""Wrong MAR models, autoencoders and LazyMAR caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.cache import masked_layout as masked
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedStep
from cachemark.core.spec import Sampling
from cachemark.methods import lazymar
from cachemark.methods.lazymar import HeadCache, LazyMAR
from cachemark.methods.masked import partial, schedule
from cachemark.models import diffusion, mar
from cachemark.models.diffusion import DiffusionHead, FinalLayer, Process, TimeEmbed
from cachemark.models.vision import kl
from cachemark.models.vision.kl import KL
from cachemark.models.vision.vq import Downsample

from ..checks import Vector
from ..readers.mar_lazy import subject as lazy_subject
from .wrong_model import Build, Patch, WrongModel, changed, names, pad_on_all_sides, patched, with_eps

# -- encoder, decoder and head ----------------------------------------------------------------------------------------------


def conditions_before_the_norm(_: Any) -> Callable[..., Tensor]:
    def conditions(self: mar.MAR, hidden: Tensor, places: Tensor) -> Tensor:
        summed = mar.take(hidden[:, self.config.buffer :], places) + F.embedding(places, self.diffusion_pos_embed_learned[0])
        return self.decoder_norm(summed)

    return conditions


def attention_with_heads_before_parts(_: Any) -> Callable[..., Tensor]:
    """The rows of the joint projection read as head by head: q, k, v of each."""

    def forward(self: mar.MARAttention, x: Tensor, site: Any, step: Any, method: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        return self.proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))

    return forward


def final_layer_that_does_not_scale_about_one(_: Any) -> Callable[..., Tensor]:
    def forward(self: FinalLayer, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation[1](cond).chunk(2, -1)
        return self.linear(torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), scale))

    return forward


def zero_condition_biases(subject: Any) -> None:
    for model in subject.models.values():
        model.diffloss.net.cond_embed.bias.zero_()


def guided_variance(right: Callable[..., Any]) -> Callable[..., Any]:
    def guided(out: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        if scale is None:
            return right(out, scale)
        c, u = out.chunk(2)
        eps, v = torch.lerp(u, c, scale).chunk(2, -1)
        return eps, v

    return guided


def noisy_last_step(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def back(self: DiffusionHead, x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: Process) -> Tensor:
        return right(self, x, eps, v, noise, index, process) + (0.01 * noise if index == 0 else 0)

    return back


def with_process(change: Callable[[Patch], Callable[[Process], None] | None]) -> Callable[[Build, Vector, Patch], Any]:
    """``change`` patches the module, and may return what is done to each new process; its tables follow."""

    def make(build: Build, vector: Vector, patch: Patch) -> Any:
        alter = change(patch)

        def process(sections: tuple[int, ...]) -> Process:
            made = Process(sections)
            if alter:
                alter(made)
            made.backs = [made._back(i) for i in range(len(made))]
            return made

        patch.setattr(diffusion, "process", process)
        return build(vector)

    return make


def linear_betas(patch: Patch) -> None:
    patch.setattr(diffusion, "_signal", lambda: numpy.cumprod(1 - numpy.linspace(1e-4, 0.02, 1000)))


def first_variance_of_its_own(patch: Patch) -> Callable[[Process], None]:
    """The least variance of step 0 taken as tiny, not as that of step 1."""

    def change(made: Process) -> None:
        made.tables["least"][0] = math.log(1e-20)

    return change


def steps_rounded_up(patch: Patch) -> None:
    def respaced(sections: tuple[int, ...]) -> tuple[int, ...]:
        count = sections[0]
        return tuple(math.ceil(i * (1000 // len(sections) - 1) / (count - 1)) for i in range(count))

    patch.setattr(diffusion, "respaced", respaced)


# -- whole generations ------------------------------------------------------------------------------------------------------
def flipped_orders(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda steps, order: right(steps, order.flip(1))


def steps_with_the_mask_rounded_up(right: Callable[..., Any]) -> Callable[..., Any]:
    def steps(layout: Layout, total: int) -> list[MaskedStep]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(masked.math, "floor", math.ceil)
            return right(layout, total)

    return steps


def guidance_by_the_mask_before(right: Callable[..., Any]) -> Callable[..., Any]:
    def guidance(sampling: Sampling, step: MaskedStep, tokens: int) -> float | None:
        return right(sampling, replace(step, left=tokens - step.first), tokens)

    return guidance


MAR = [
    patched("last position before the norm", "told conditions last_conditions", mar.MAR, "conditions", conditions_before_the_norm),
    patched("heads before parts", "encoder told encoder_block decoder_block", mar.MARAttention, "forward",
            attention_with_heads_before_parts),
    patched("sines first", "waves time_embed head", TimeEmbed, "waves", lambda right: lambda self, t: right(self, t).roll(128, -1)),
    changed("condition without bias", "cond_embed head", zero_condition_biases),
    patched("scale is not about one", "head head_guided mean log_variance start sampled_cfg1", FinalLayer, "forward",
            final_layer_that_does_not_scale_about_one),
    patched("variance is guided too", "head_guided sampled_cfg3 sampled_cfg3s latents", diffusion, "guided", guided_variance),
    patched("noise in the last step", "sampled_cfg3s latents", DiffusionHead, "back", noisy_last_step),
    WrongModel("linear betas", names("mean log_variance start loss_mse loss_vb loss_loss sampled_cfg1"), with_process(linear_betas)),
    WrongModel("first variance of its own", names("log_variance"), with_process(first_variance_of_its_own), nightly=True),
    WrongModel("steps rounded up", names("timesteps sampled_cfg3s"), with_process(steps_rounded_up)),
    patched("divergence the other way", "loss_vb loss_loss", diffusion, "_divergence", lambda right: lambda a, b, c, d: right(c, d, a, b)),
    patched("head of the order first", "masks conditions latents", mar, "placed", flipped_orders),
    patched("mask rounded up", "counts masks", mar, "masked_steps", steps_with_the_mask_rounded_up),
    patched("guided by the mask before", "guidance latents", mar, "guidance", guidance_by_the_mask_before),
    changed("by columns", "flattened latents",
            lambda subject: replace(subject, grid=lambda tokens: subject.grid(tokens).mT, flat=lambda grid: subject.flat(grid.mT))),
]

# -- the autoencoder --------------------------------------------------------------------------------------------------------
VAE_DECODER = [
    changed("group norm eps", "image decoded", lambda model: with_eps(model, nn.GroupNorm, 1e-3)),
    patched("another scale", "decoded", kl, "SCALE", lambda _: 0.18215),
]
VAE_ENCODER = [
    patched("another scale", "encoded", kl, "SCALE", lambda _: 0.18215),
    changed("padded on all sides", "moments mean deviation encoded", lambda model: pad_on_all_sides(model, Downsample)),
    patched("variance for deviation", "deviation", KL, "moments",
            lambda right: lambda self, images: (right(self, images)[0], right(self, images)[1].square())),
]


# -- LazyMAR ----------------------------------------------------------------------------------------------------------------
def lazy(name: str, checks: str, only: str = "32", **knobs: Any) -> WrongModel:
    """One generation of the file, under another knob."""
    return WrongModel(name, names(checks), lambda build, vector, patch: lazy_subject(vector, only, **knobs))


def lazy_patched(name: str, checks: str, owner: Any, attribute: str, wrong: Callable[[Any], Any], only: str = "32") -> WrongModel:
    right = patched(name, checks, owner, attribute, wrong)
    return replace(right, make=lambda build, vector, patch: right.make(lambda read: lazy_subject(read, only), vector, patch))


def attend_beside_the_last_full_pass(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attend(self: LazyMAR, site: Any, step: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = None if self.values is None or self.full[step.index] else self.values.clone()
        out = right(self, site, step, q, k, v)
        if before is not None and self.values is not None:
            self.values.copy_(before)
        return out

    return attend


def sub_without_difference(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, b, **options: right(a, b, **options).zero_() if "out" in options else right(a, b, **options)


def update_with_a_stale_buffer(right: Callable[..., Any]) -> Callable[..., Any]:
    """The encoder's buffer keeps the keys of the last full pass: the new tokens alone are written."""

    def update(self: partial.Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
        if len(self.at) == 6:  # the encoder's, which keeps all blocks
            k, v = (torch.cat((old[:, :, :64], new[:, :, 64:]), 2) for old, new in zip(self.read(block, live), (k, v), strict=True))
        return right(self, block, k, v, places, live)

    return update


def unconditional_for_zero(build: Build, vector: Vector, patch: Patch) -> Any:
    subject = lazy_subject(vector, "32")
    subject.weights["fake_latent"] = torch.zeros_like(subject.weights["fake_latent"])
    return subject


def stack_without_the_difference(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def stack(self: HeadCache, step: MaskedStep, tokens: Any, run: Any) -> Tensor:
        out = right(self, step, tokens, run)
        self.apart.zero_()
        return out

    return stack


def always_cached(right: Callable[..., None]) -> Callable[..., None]:
    return lambda self, **knobs: right(self, **{**knobs, "head_cache": True})


def early_by_one_pass_more(_: Any) -> staticmethod:
    return staticmethod(lambda step: step.inners - 1 - step.inner >= lazymar.EARLY * step.inners - 1)


LAZY = [
    lazy("later start", "full_passes encoder_shapes", start=6),
    lazy("shifted table", "kept_counts kept told", table=(1.0, *schedule.PUBLISHED[:-1])),
    lazy_patched("compared with the last full pass", "scores kept", LazyMAR, "attend", attend_beside_the_last_full_pass),
    lazy_patched("no difference", "told everywhere differences", torch, "sub", sub_without_difference, "64"),
    lazy_patched("stale buffer", "encoded told", partial.Places, "update", update_with_a_stale_buffer),
    WrongModel("no class for the unconditional", names("told told_in_full"), unconditional_for_zero),
    lazy_patched("another order", "masks", mar, "placed", flipped_orders),
    lazy_patched("earlier guidance", "guidance", mar, "guidance", guidance_by_the_mask_before),
    lazy_patched("one early pass more", "head_calls_std", HeadCache, "early", early_by_one_pass_more, ""),
    lazy_patched("unconditional is conditional", "head_std head_tame", HeadCache, "stack", stack_without_the_difference, ""),
    lazy_patched("always cached", "plain_head", LazyMAR, "__init__", always_cached, ""),
]
