"""Wrong LlamaGen, Janus and Lumina models and image tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.contract.method import Method
from cachemark.models import janus, llama, raster, sampling
from cachemark.models.janus import Janus
from cachemark.models.layers import RMSNorm
from cachemark.models.llama import ChannelNorm
from cachemark.models.lumina import Lumina

from ..readers import lumina as lumina_reader
from ..readers.llamagen import Transformer, sampling_of
from .wrong_model import (
    changed,
    end_step_that_loses_a_key,
    guide_too_far,
    patched,
    rounded_bytes,
    top_p_without_the_crossing_token,
    with_eps,
)

# -- LlamaGen -------------------------------------------------------------------------------------------------------------
UNCACHED = "logits_full logits_train hidden_first hidden_last train_loss"
CACHED = "logits_cached logits_null guided_logits slot_keys"
GREEDY = "greedy_cfg greedy_cfg_interval greedy_nocfg"


def one_class_less(subject: Transformer) -> None:
    subject.model.config = replace(subject.model.config, classes=subject.model.config.classes - 1)


def sampled_with(**fields: Any) -> Callable[[Transformer], Transformer]:
    return lambda subject: replace(subject, sampling=lambda vector, run: replace(sampling_of(vector, run), **fields))


def half_a_step_lower(images: Tensor) -> Tensor:
    """The common (x + 1)·127.5, whose truncation is not that of 127.5·x + 128."""
    return ((images + 1) * 127.5).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def antialiased(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size=size, mode="bicubic", align_corners=False, antialias=True)


LLAMAGEN = [
    changed("small norm eps", f"{UNCACHED} {CACHED} slot_values", lambda subject: with_eps(subject.model, RMSNorm, 1e-6)),
    patched("a key is lost", f"{CACHED} {GREEDY} slot_values", Method, "end_step", end_step_that_loses_a_key),
    changed("another null class", "guided_logits greedy_cfg greedy_cfg_interval", one_class_less),
    changed("guided without end", "greedy_cfg_interval", sampled_with(cfg_interval=-1)),
    changed("top-p drops the crossing token", "filters",
            lambda subject: replace(subject, filter_logits=top_p_without_the_crossing_token(subject.filter_logits))),
]
LLAMAGEN_VQ = [
    changed("group norm eps", "image bicubic", lambda subject: with_eps(subject.model, nn.GroupNorm, 1e-5)),
    changed("truncated half a step lower", "image_bytes bicubic_bytes", lambda subject: replace(subject, to_uint8=half_a_step_lower)),
    changed("antialiased", "bicubic bicubic_bytes", lambda subject: replace(subject, resize=antialiased)),
]

# -- Janus ----------------------------------------------------------------------------------------------------------------
LOGITS = "guided_AB conditional_AB unconditional_AB"
SLOTS = "slots0_A slots2_AB"


def counted_from_the_longest_row(right: Callable[..., Any]) -> Callable[..., Any]:
    """Codes of every row count on from the longest prompt of the batch."""
    return lambda self, fed, step, place, starts: right(self, fed, step, place, starts.max().expand_as(starts))


JANUS = [
    patched("positions of the longest row", "guided_A conditional_A unconditional_A hidden_A slots0_A slots2_A", Janus, "feed",
            counted_from_the_longest_row),
    patched("read behind the prompt", "guided_A conditional_A hidden_A", raster, "_ragged", lambda _: lambda layout, step: False),
    changed("large norm eps", f"hidden_AB {LOGITS} {SLOTS}", lambda subject: with_eps(subject.model, RMSNorm, 1e-3)),
    patched("padded to the end", "codes_AB guided_AB unconditional_AB", janus, "unconditional",
            lambda _: lambda ids, pad: (ids[0], *[pad] * (len(ids) - 1))),
    patched("guided too far", "guided_AB", raster, "guide", guide_too_far),
]
JANUS_VQ = [
    changed("group norm eps", "image_AB", lambda subject: with_eps(subject.model, nn.GroupNorm, 1e-2)),
    changed("rounded bytes", "image_bytes_AB", lambda subject: replace(subject, to_uint8=rounded_bytes)),
]


# -- Lumina ---------------------------------------------------------------------------------------------------------------
def counted_from_the_longest_row_while_drawing(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, fed, step, place, starts: right(self, fed, step, place, starts.amax().expand_as(starts) if step.count else starts)


LUMINA = [
    patched("norm without bias", f"{LOGITS} {SLOTS}", ChannelNorm, "forward", lambda right: lambda self, x: right(self, x) - self.bias),
    patched("large norm eps", f"{LOGITS} {SLOTS}", llama, "QK_NORM_EPS", lambda _: 0.1),
    patched("positions of the longest row", f"guided_AB unconditional_AB {SLOTS}", Lumina, "feed",
            counted_from_the_longest_row_while_drawing),
    patched("lines end one too early", "codes_AB guided_AB kept_AB", Lumina, "allowed",
            lambda right: lambda self, logits, place: right(self, logits, place + 1)),
    patched("fewer tokens kept", "kept_AB", lumina_reader, "filter_logits",
            lambda _: lambda logits, setting: sampling.filter_logits(logits, replace(setting, top_k=3))),
]
LUMINA_VQ = [
    changed("group norm eps", "image_AB", lambda subject: with_eps(subject.model, nn.GroupNorm, 1e-2)),
    changed("rounded bytes", "image_bytes_AB", lambda subject: replace(subject, to_uint8=lambda x: rounded_bytes(x.clamp(-1, 1)))),
]
