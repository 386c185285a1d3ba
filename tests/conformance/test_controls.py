"""Negative controls: checks must notice models that are wrong in ways people get wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cachemark.cache.rotated import RotationConstants
from cachemark.contract.method import Method
from cachemark.decoders.zipar import ZipAR
from cachemark.methods import fastvar, guidance_off, halton, lazymar, recap
from cachemark.models import emu3, glm_image, janus, lumina, mar, var
from cachemark.models.vision import emu3_vq, kl, vq

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES, codecs as codecs_reader, infinity, llamagen

Wrong = Callable[[Any], Any]


def lose_a_key(right: Callable[..., None]) -> Callable[..., None]:
    def end_step(method: Method, step: Any) -> None:
        right(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    return end_step


# One for each file: its vectors, checks that must fail, and what replaces which attribute before the model is built.
CONTROLS: list[tuple[str, str, Any, str, Wrong]] = [
    ("codecs/turboquant", "codebooks codes decoded", codecs_reader, "codebook",
     lambda right: lambda width, bits: right(10_000, bits) * (10_000 / width) ** 0.5),  # the limit of many channels
    ("codecs/turboquant", "codes decoded", RotationConstants, "of",
     lambda right: lambda rotation, centroids: right(rotation.mT, centroids)),
    ("emu3/small", "guided_A unconditional_A unconditional_B slots0_A slots2_B", emu3.Emu3, "feed",
     lambda right: lambda self, fed, step, place, starts: right(self, fed, step, place, starts.max().expand_as(starts))),
    ("emu3/small_vq", "image_A image_B", emu3_vq.FrameConv, "forward", lambda right: lambda self, x: F.conv2d(  # it looks ahead
        x, self.conv.weight[:, :, 0], self.conv.bias, padding=self.conv.kernel_size[-1] // 2)),
    ("glm_image/small", "logits_A logits_B sampled_A slots2_B", glm_image.GlmImage, "feed",
     lambda right: lambda self, fed, step, place, starts: right(self, fed, step, place, starts + 1)),
    ("infinity/fastvar", "kept greedy_kept merged logits", fastvar.FastVAR, "scored",
     lambda right: lambda self, *arguments: -right(self, *arguments)),
    ("infinity/skipvar", "rows", guidance_off.GuidanceOff, "computed_rows",
     lambda right: lambda self, layout, scale: right(self, layout, scale + 1)),
    ("infinity/small", "rounded", infinity, "in_bf16", lambda right: lambda mixed: mixed),
    ("janus/small", "guided_A conditional_A unconditional_A hidden_A slots2_A", janus.Janus, "feed",
     lambda right: lambda self, fed, step, place, starts: right(self, fed, step, place, starts.max().expand_as(starts))),
    ("llamagen/small", "logits_cached logits_null guided_logits greedy_cfg greedy_nocfg", Method, "end_step", lose_a_key),
    ("llamagen/zipar", "tokens_w2_cfg tokens_w5_cfg_hidden tokens_w3_nocfg logits_w3_cfg", ZipAR, "_before",
     lambda right: lambda self, layout, row, column: right(self, layout, row, column) + (0 if column or row < 2 else layout.line)),
    ("llamagen/small_vq", "image_bytes bicubic_bytes", llamagen, "to_uint8", lambda right: lambda images: right(images - 0.5 / 127.5)),
    ("lumina/small", "codes_A guided_B kept_A", lumina.Lumina, "allowed",
     lambda right: lambda self, logits, place: right(self, logits, place + 1)),
    ("lumina/small_vq", "image_A image_B", vq, "GROUP_EPS", lambda right: 1e-2),
    ("mar/small", "guidance latents", mar, "guidance",
     lambda right: lambda setting, step, tokens: right(setting, replace(step, left=tokens - step.first), tokens)),
    ("mar/halton", "orders", halton, "halton_order",
     lambda right: lambda lines, line: [place % line * line + place // line for place in right(lines, line)]),  # columns in base 2
    ("mar/lazy", "kept head_inputs", lazymar.LazyMAR, "scores", lambda right: lambda self, *arguments: -right(self, *arguments)),
    ("mar/recap", "encoder_computed head_inputs tokens latents", recap.ReCAP, "_drawn", lambda right: lambda self, step: step.previous),
    ("mar/vae_decoder", "decoded", kl, "SCALE", lambda right: 0.18215),
    ("var/small", "logits guided hidden teacher", var, "STEEPEST", lambda right: 99.0),
]


@pytest.mark.parametrize(("name", "checks", "owner", "attribute", "wrong"), [
    pytest.param(*control, marks=[pytest.mark.slow] if number % 4 else []) for number, control in enumerate(CONTROLS)])
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
