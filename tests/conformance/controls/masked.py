"""Wrong MAR models, autoencoders and LazyMAR caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cachemark.cache import masked_layout as masked
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedStep
from cachemark.core.spec import Sampling
from cachemark.methods import lazymar
from cachemark.methods.base import lazy_schedule as schedule
from cachemark.methods.base import partial
from cachemark.methods.lazymar import HeadCache, LazyMAR
from cachemark.models import diffusion, mar
from cachemark.models.diffusion import DiffusionHead, Process
from cachemark.models.vision import kl
from cachemark.models.vision.kl import KL
from cachemark.models.vision.vq import Downsample

from ..checks import Vector
from ..readers.mar_lazy import subject as lazy_subject
from .wrong_model import Build, Patch, WrongModel, changed, names, pad_on_all_sides, patched, with_eps


# -- the head ---------------------------------------------------------------------------------------------------------------
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
    patched("variance is guided too", "head_guided sampled_cfg3 sampled_cfg3s latents", diffusion, "guided", guided_variance),
    patched("noise in the last step", "sampled_cfg3s latents", DiffusionHead, "back", noisy_last_step),
    WrongModel("first variance of its own", names("log_variance"), with_process(first_variance_of_its_own), nightly=True),
    WrongModel("steps rounded up", names("timesteps sampled_cfg3s"), with_process(steps_rounded_up)),
    patched("mask rounded up", "counts masks", mar, "masked_steps", steps_with_the_mask_rounded_up),
    patched("guided by the mask before", "guidance latents", mar, "guidance", guidance_by_the_mask_before),
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
def lazy(name: str, checks: str, only: str = "32", **parameters: Any) -> WrongModel:
    """One generation of the file, under another parameter."""
    return WrongModel(name, names(checks), lambda build, vector, patch: lazy_subject(vector, only, **parameters))


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


def early_by_one_pass_more(_: Any) -> staticmethod:
    return staticmethod(lambda step: step.inners - 1 - step.inner >= lazymar.EARLY * step.inners - 1)


LAZY = [
    lazy("shifted table", "kept_counts kept told", table=(1.0, *schedule.PUBLISHED[:-1])),
    lazy_patched("compared with the last full pass", "scores kept", LazyMAR, "attend", attend_beside_the_last_full_pass),
    lazy_patched("stale buffer", "encoded told", partial.Places, "update", update_with_a_stale_buffer),
    WrongModel("no class for the unconditional", names("told told_in_full"), unconditional_for_zero),
    lazy_patched("one early pass more", "head_calls_std", HeadCache, "early", early_by_one_pass_more, ""),
    lazy_patched("unconditional is conditional", "head_std head_tame", HeadCache, "stack", stack_without_the_difference, ""),
]
