"""Negative controls: checks must notice models that are wrong in ways people get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache import masked_layout
from cachemark.contract.method import Method
from cachemark.methods.lazymar import EARLY, HeadCache, LazyMAR
from cachemark.models import diffusion, janus, llama, mar, raster, var
from cachemark.models.infinity import Infinity
from cachemark.models.janus import Janus
from cachemark.models.layers import RMSNorm
from cachemark.models.llama import ChannelNorm
from cachemark.models.lumina import Lumina
from cachemark.models.vision import bsq, kl, vq
from cachemark.models.vision.kl import KL

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES, infinity, llamagen, lumina
from .readers import janus as janus_reader
from .readers import var as var_reader

Wrong = Callable[[Any], Any]


def lose_a_key(right: Callable[..., None]) -> Callable[..., None]:
    def end_step(method: Method, step: Any) -> None:
        right(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    return end_step


def drop_the_crossing_token(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return top-p without the token that crosses p."""
    def wrong(logits: Tensor, setting: Any) -> Tensor:
        filtered = right(logits, setting)
        last = filtered.masked_fill(filtered.isinf(), float("inf")).argmin(-1, keepdim=True)
        return filtered if setting.top_p == 1 else filtered.scatter(-1, last, float("-inf"))

    return wrong


def attend_padding(right: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Infinity, *arguments: Any) -> tuple[Tensor, Tensor]:
        features, attended = right(self, *arguments)
        return features, torch.ones_like(attended)

    return read


def pad_on_all_sides(right: Any) -> Callable[..., Tensor]:
    return lambda self, x: F.conv2d(x, self.conv.weight, self.conv.bias, stride=2, padding=1)


def scaled(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, x: right(self, x) * 1.001


def rounded_bytes(right: Any) -> Callable[[Tensor], Tensor]:
    return lambda images: ((images.clamp(-1, 1) + 1) / 2 * 255).round().permute(0, 2, 3, 1).to(torch.uint8)


# Vectors, checks that must fail, and what replaces which attribute before the model is built.
CONTROLS: list[tuple[str, str, Any, str, Wrong]] = [
    ("infinity/small", "logits guided hidden", Infinity, "read", attend_padding),
    ("infinity/small", "next_maps summed image", bsq, "resized",
     lambda right: lambda x, side: F.interpolate(x, size=(side, side), mode="area")),
    ("infinity/small", "rounded", infinity, "in_bf16", lambda right: lambda mixed: mixed),
    ("janus/small", "guided_A conditional_A unconditional_A hidden_A slots0_A slots2_B", RMSNorm, "forward", scaled),
    ("janus/small", "guided_A conditional_A unconditional_A hidden_A slots2_A", Janus, "feed",
     lambda right: lambda self, fed, step, place, starts: right(self, fed, step, place, starts.max().expand_as(starts))),
    ("janus/small", "guided_A conditional_A hidden_A", raster, "_ragged", lambda right: lambda layout, step: False),
    ("janus/small", "codes_A codes_B guided_A unconditional_B", janus, "unconditional",
     lambda right: lambda ids, pad: (ids[0], *[pad] * (len(ids) - 1))),
    ("janus/small_vq", "image_bytes_A image_bytes_B", janus_reader, "to_uint8", rounded_bytes),
    ("llamagen/small", "logits_full logits_train hidden_first hidden_last train_loss slot_keys slot_values", RMSNorm, "forward", scaled),
    ("llamagen/small", "logits_cached logits_null guided_logits greedy_cfg greedy_nocfg", Method, "end_step", lose_a_key),
    ("llamagen/small", "greedy_cfg_interval", llamagen, "sampling_of",
     lambda right: lambda vector, run: replace(right(vector, run), cfg_interval=-1)),
    ("llamagen/small", "filters", llamagen, "filter_logits", drop_the_crossing_token),
    ("llamagen/small_vq", "image bicubic", vq, "GROUP_EPS", lambda right: 1e-3),
    ("llamagen/small_vq", "image_bytes bicubic_bytes", llamagen, "to_uint8", lambda right: lambda images: right(images - 0.5 / 127.5)),
    ("lumina/small", "guided_A conditional_B unconditional_A slots0_A slots2_B", ChannelNorm, "forward",
     lambda right: lambda self, x: right(self, x) - self.bias),
    ("lumina/small", "conditional_A unconditional_B guided_A", llama, "QK_NORM_EPS", lambda right: 0.1),
    ("lumina/small", "codes_A guided_B kept_A", Lumina, "allowed",
     lambda right: lambda self, logits, place: right(self, logits, place + 1)),
    ("lumina/small", "kept_A kept_B", lumina, "filter_logits",
     lambda right: lambda logits, setting: right(logits, replace(setting, top_k=3))),
    ("lumina/small_vq", "image_A image_B", vq, "GROUP_EPS", lambda right: 1e-2),
    ("mar/small", "head_guided sampled_cfg3 sampled_cfg3s latents", diffusion, "guided", lambda right: lambda out, scale: (
        right(out, scale) if scale is None else torch.lerp(*reversed(out.chunk(2)), scale).chunk(2, -1))),
    ("mar/small", "counts masks", masked_layout, "cosine_counts", lambda right: lambda tokens, total: right(tokens, total)[::-1]),
    ("mar/small", "guidance latents", mar, "guidance",
     lambda right: lambda setting, step, tokens: right(setting, replace(step, left=tokens - step.first), tokens)),
    ("mar/lazy", "kept head_inputs", LazyMAR, "scores", lambda right: lambda self, *arguments: -right(self, *arguments)),
    ("mar/lazy", "head_calls_std", HeadCache, "early",
     lambda right: staticmethod(lambda step: step.inners - 1 - step.inner >= EARLY * step.inners - 1)),
    ("mar/vae_decoder", "image decoded", vq, "GROUP_EPS", lambda right: 1e-3),
    ("mar/vae_encoder", "encoded", kl, "SCALE", lambda right: 0.18215),
    ("mar/vae_encoder", "moments mean deviation encoded", vq.Downsample, "forward", pad_on_all_sides),
    ("mar/vae_encoder", "deviation", KL, "moments", lambda right: lambda self, images: (
        right(self, images)[0], right(self, images)[1].square())),
    ("var/small", "logits guided hidden teacher", var, "STEEPEST", lambda right: 99.0),
    ("var/small", "guided", var, "guide_scale",
     lambda right: lambda logits, setting, index, total: right(logits, setting, total - 1, total)),
    ("var/small", "kept", var_reader, "filter_logits", drop_the_crossing_token),
]


@pytest.mark.parametrize(("name", "checks", "owner", "attribute", "wrong"), CONTROLS)
def test_a_wrong_model_is_noticed(
    name: str, checks: str, owner: Any, attribute: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, _, kind = name.partition("/")
    vector, reader = Vector.load(DEFAULT / family / f"golden_{kind}.safetensors"), FAMILIES[family][kind]
    by_name = {check.name: check for check in reader.checks_of(vector.names)}
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    with torch.no_grad():
        subject = reader.build(vector)
        assert not [check for check in checks.split() if not by_name[check].fault(subject, vector)]
