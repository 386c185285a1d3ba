"""Negative controls: checks must notice models that are wrong in ways people get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.cache import masked_layout
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods import lazymar
from cachemark.methods.base import lazy_schedule as schedule
from cachemark.methods.lazymar import HeadCache
from cachemark.models import diffusion, janus, llama, mar, raster, sampling, scales, var
from cachemark.models.infinity import Infinity
from cachemark.models.janus import Janus
from cachemark.models.layers import RMSNorm
from cachemark.models.llama import ChannelNorm
from cachemark.models.lumina import Lumina
from cachemark.models.scales import ModulatedBlock
from cachemark.models.vision import bsq, kl
from cachemark.models.vision.kl import KL
from cachemark.models.vision.vq import Downsample

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES
from .readers import infinity as infinity_reader
from .readers import lumina as lumina_reader
from .readers.llamagen import sampling_of
from .readers.mar_lazy import subject as lazy_subject

Patch = pytest.MonkeyPatch
Build = Callable[[Vector], Any]


@dataclass(frozen=True)
class WrongModel:
    """An error in a model, and the checks that must fail; ``make`` gets the reader's build function."""

    kind: str
    name: str
    checks: str
    make: Callable[[Build, Vector, Patch], Any]

    @property
    def check_names(self) -> list[str]:
        """Names of checks; ``codes_AB`` is short for ``codes_A`` and ``codes_B``."""
        return [full for name in self.checks.split() for full in ((name[:-1], f"{name[:-2]}B") if name.endswith("_AB") else (name,))]


def patched(kind: str, name: str, checks: str, owner: Any, attribute: str, wrong: Callable[[Any], Any]) -> WrongModel:
    """Replace an attribute of the code before the model is built; ``wrong`` gets the right one."""

    def make(build: Build, vector: Vector, patch: Patch) -> Any:
        patch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
        return build(vector)

    return WrongModel(kind, name, checks, make)


def changed(kind: str, name: str, checks: str, change: Callable[[Any], Any]) -> WrongModel:
    """Alter the model that was built, or return another in its place."""

    def make(build: Build, vector: Vector, patch: Patch) -> Any:
        subject = build(vector)
        return change(subject) or subject

    return WrongModel(kind, name, checks, make)


def with_eps(module: nn.Module, kinds: type | tuple[type, ...], eps: float) -> None:
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.eps = eps  # type: ignore[assignment]


def norm_eps(kind: str, checks: str, eps: float = 1e-2) -> WrongModel:
    """Another epsilon in the group norms of an image tokenizer."""
    return changed(kind, "group norm eps", checks, lambda subject: with_eps(getattr(subject, "model", subject), nn.GroupNorm, eps))


def pad_on_all_sides(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, Downsample):
            layer.forward = lambda x, conv=layer.conv: F.conv2d(  # type: ignore[method-assign]
                x, conv.weight, conv.bias, stride=2, padding=1)


def lose_a_key(right: Callable[..., None]) -> Callable[..., None]:
    def end_step(method: Method, step: Any) -> None:
        right(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    return end_step


def drop_the_crossing_token(subject: Any) -> Any:
    """Top-p without the token that crosses p."""
    def wrong(logits: Tensor, setting: Sampling) -> Tensor:
        filtered = subject.filter_logits(logits, setting)
        last = filtered.masked_fill(filtered.isinf(), float("inf")).argmin(-1, keepdim=True)
        return filtered if setting.top_p == 1 else filtered.scatter(-1, last, float("-inf"))

    return replace(subject, filter_logits=wrong)


def rounded_bytes(images: Tensor) -> Tensor:
    """Round bytes, which the authors truncate."""
    return ((images.clamp(-1, 1) + 1) / 2 * 255).round().permute(0, 2, 3, 1).to(torch.uint8)


def attend_padding(right: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Infinity, *arguments: Any) -> tuple[Tensor, Tensor]:
        features, attended = right(self, *arguments)
        return features, torch.ones_like(attended)

    return read


def use_one_phi(subject: Any) -> None:
    """One convolution for all scales."""
    for model in subject.models.values():
        model.quantizer._phi = [0] * len(model.quantizer._phi)


def guide_the_variance(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, scale: right(out, scale) if scale is None else torch.lerp(*reversed(out.chunk(2)), scale).chunk(2, -1)


def round_the_mask_up(right: Callable[..., Any]) -> Callable[..., Any]:
    def steps(layout: Any, total: int) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(masked_layout.math, "floor", masked_layout.math.ceil)
            return right(layout, total)

    return steps


def without_class(build: Build, vector: Vector, patch: Patch) -> Any:
    """Replace the learned vector of unconditional rows by zeros."""
    subject = lazy_subject(vector, "32")
    subject.weights["fake_latent"] = torch.zeros_like(subject.weights["fake_latent"])
    return subject


def forget_the_difference(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def stack(self: HeadCache, *arguments: Any) -> Tensor:
        out = right(self, *arguments)
        self.apart.zero_()
        return out

    return stack


UNCACHED = "logits_full logits_train hidden_first hidden_last train_loss"
CACHED = "logits_cached logits_null guided_logits slot_keys slot_values"
LOGITS = "guided_AB conditional_AB unconditional_AB slots0_A slots2_AB"
PASSES = "logits guided hidden"
CONTROLS = [
    changed("infinity/small", "large norm eps", PASSES,
            lambda subject: with_eps(subject.model, (RMSNorm, ModulatedBlock, scales.HeadNorm), 1e-2)),
    changed("infinity/small", "group norm eps", "image", lambda subject: with_eps(subject.images, nn.GroupNorm, 1e-2)),
    patched("infinity/small", "padding is attended", PASSES, Infinity, "read", attend_padding),
    patched("infinity/small", "resized by area", "next_maps summed image", bsq, "resized",
            lambda _: lambda x, side: F.interpolate(x, size=(side, side), mode="area")),
    patched("infinity/small", "text read in fp32", "rounded", infinity_reader, "in_bf16", lambda _: lambda mixed: mixed),
    changed("janus/small", "large norm eps", f"hidden_AB {LOGITS}", lambda subject: with_eps(subject.model, RMSNorm, 1e-3)),
    patched("janus/small", "positions of the longest row", "guided_A conditional_A unconditional_A hidden_A slots2_A", Janus, "feed",
            lambda right: lambda self, fed, step, place, starts: right(self, fed, step, place, starts.max().expand_as(starts))),
    patched("janus/small", "padding is read", "guided_A conditional_A hidden_A", raster, "_ragged", lambda _: lambda layout, step: False),
    patched("janus/small", "padded to the end", "codes_AB guided_AB unconditional_AB", janus, "unconditional",
            lambda _: lambda ids, pad: (ids[0], *[pad] * (len(ids) - 1))),
    norm_eps("janus/small_vq", "image_AB"),
    changed("janus/small_vq", "rounded bytes", "image_bytes_AB", lambda subject: replace(subject, to_uint8=rounded_bytes)),
    changed("llamagen/small", "small norm eps", f"{UNCACHED} {CACHED}", lambda subject: with_eps(subject.model, RMSNorm, 1e-6)),
    patched("llamagen/small", "a key is lost", f"{CACHED} greedy_cfg greedy_cfg_interval greedy_nocfg", Method, "end_step", lose_a_key),
    changed("llamagen/small", "guided without end", "greedy_cfg_interval",
            lambda subject: replace(subject, sampling=lambda vector, run: replace(sampling_of(vector, run), cfg_interval=-1))),
    changed("llamagen/small", "top-p drops the crossing token", "filters", drop_the_crossing_token),
    norm_eps("llamagen/small_vq", "image bicubic", 1e-5),
    changed("llamagen/small_vq", "truncated half a step lower", "image_bytes bicubic_bytes",
            lambda subject: replace(subject, to_uint8=lambda images: subject.to_uint8(images - 0.5 / 127.5))),
    patched("lumina/small", "norm without bias", LOGITS, ChannelNorm, "forward", lambda right: lambda self, x: right(self, x) - self.bias),
    patched("lumina/small", "large norm eps", LOGITS, llama, "QK_NORM_EPS", lambda _: 0.1),
    patched("lumina/small", "lines end one too early", "codes_AB guided_AB kept_AB", Lumina, "allowed",
            lambda right: lambda self, logits, place: right(self, logits, place + 1)),
    patched("lumina/small", "fewer tokens kept", "kept_AB", lumina_reader, "filter_logits",
            lambda _: lambda logits, setting: sampling.filter_logits(logits, replace(setting, top_k=3))),
    norm_eps("lumina/small_vq", "image_AB"),
    changed("lumina/small_vq", "rounded bytes", "image_bytes_AB", lambda subject: replace(subject, to_uint8=rounded_bytes)),
    patched("mar/small", "variance is guided too", "head_guided sampled_cfg3 sampled_cfg3s latents", diffusion, "guided",
            guide_the_variance),
    patched("mar/small", "mask rounded up", "counts masks", mar, "masked_steps", round_the_mask_up),
    patched("mar/small", "guided by the mask before", "guidance latents", mar, "guidance",
            lambda right: lambda setting, step, tokens: right(setting, replace(step, left=tokens - step.first), tokens)),
    WrongModel("mar/lazy", "shifted table", "kept_counts kept head_inputs",
               lambda build, vector, patch: lazy_subject(vector, "32", table=(1.0, *schedule.PUBLISHED[:-1]))),
    WrongModel("mar/lazy", "no class for the unconditional", "head_inputs head_inputs_in_full", without_class),
    patched("mar/lazy", "one early pass more", "head_calls_std", HeadCache, "early",
            lambda _: staticmethod(lambda step: step.inners - 1 - step.inner >= lazymar.EARLY * step.inners - 1)),
    patched("mar/lazy", "unconditional is conditional", "head_std head_tame", HeadCache, "stack", forget_the_difference),
    norm_eps("mar/vae_decoder", "image decoded", 1e-3),
    patched("mar/vae_encoder", "another scale", "encoded", kl, "SCALE", lambda _: 0.18215),
    changed("mar/vae_encoder", "padded on all sides", "moments mean deviation encoded", pad_on_all_sides),
    patched("mar/vae_encoder", "variance for deviation", "deviation", KL, "moments",
            lambda right: lambda self, images: (right(self, images)[0], right(self, images)[1].square())),
    patched("var/small", "scale not clamped", f"{PASSES} teacher", var, "STEEPEST", lambda _: 99.0),
    patched("var/small", "guided alike in every scale", "guided", var, "guide_scale",
            lambda right: lambda logits, setting, index, total: right(logits, setting, total - 1, total)),
    changed("var/small", "one phi for all scales", "maps image restored quantised", use_one_phi),
    changed("var/small", "top-p drops the crossing token", "kept", drop_the_crossing_token),
    norm_eps("var/vqvae_full", "image latents again"),
    changed("var/vqvae_full", "padded on all sides", "latents tokens", pad_on_all_sides),
]


@pytest.mark.parametrize("wrong", [
    pytest.param(wrong, id=f"{wrong.kind}-{wrong.name}", marks=[pytest.mark.slow] if wrong.kind == "var/vqvae_full" else [])
    for wrong in CONTROLS
])
def test_a_wrong_model_is_noticed(wrong: WrongModel, monkeypatch: pytest.MonkeyPatch) -> None:
    family, _, kind = wrong.kind.partition("/")
    vector, reader = Vector.load(DEFAULT / family / f"golden_{kind}.safetensors"), FAMILIES[family][kind]
    checks = {check.name: check for check in reader.checks_of(vector.names)}
    with torch.no_grad():
        subject = wrong.make(reader.build, vector, monkeypatch)
        assert not [name for name in wrong.check_names if not checks[name].fault(subject, vector)]
