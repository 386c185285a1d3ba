"""Infinity: transformer, whole generations, and image decoder (kind ``small``).

Texts of different length are padded in one batch; the authors concatenate them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core.spec import Sampling
from cachemark.models.infinity import Infinity, InfinityConfig, TextAttention, rope_table
from cachemark.models.vision import bsq
from cachemark.models.vision.bsq import BSQ, BSQConfig, bits_of

from ..checks import LOGITS, RARE, Check, Kind, Vector, apart, below, compare, differing, differing_bytes, filled, slot_apart, spread
from .var import Watched


@dataclass(frozen=True)
class Ran:
    """A generation, by scale.

    Guided bit logits after the temperature, logits of all rows, hidden states, bits, feature maps and inputs of the next scale; and the
    method with its slots.
    """

    guided: list[Tensor]
    plain: list[Tensor]
    hidden: list[Tensor]
    bits: list[Tensor]
    maps: list[Tensor]
    fed: list[Tensor]
    method: Watched


class Subject:
    """The subject of the checks."""

    def __init__(self, vector: Vector, model: Infinity, images: BSQ) -> None:
        self.vector, self.model, self.images = vector, model, images

    @cached_property
    def tokens(self) -> Tensor:
        """Tokens of a greedy generation."""
        return self._generate()[0]

    @cached_property
    def ran(self) -> Ran:
        """A generation along the file's bits."""
        tokens, guided, method = self._generate(tokens_of(self.vector))
        model, sides, quantizer = self.model, self.model.config.sides, self.model.quantizer
        labels = list(range(len(model.texts)))
        features, attended = model.read(labels, 2)
        cond = model.text_proj_for_sos["ca"](None, features, attended)[:, 0]
        split = tokens.split([side**2 for side in sides], 1)
        maps = [quantizer.empty(len(tokens))]
        for scale, part in enumerate(split):
            maps.append(quantizer.add(maps[-1], part, scale))
        fed = [quantizer.next_map(f_hat, scale + 1) for scale, f_hat in enumerate(maps[1:-1])]
        plain = [model.logits(h, cond).detach() for h in method.hidden]
        return Ran(guided, plain, method.hidden, [bits_of(part, model.config.bits) for part in split], maps[1:], fed, method)

    @cached_property
    def rounded(self) -> list[Tensor]:
        """Logits with inputs and output of cross-attention rounded to bf16, as the authors do."""
        patch = Subject(self.vector, copy.deepcopy(self.model), self.images)
        for module in patch.model.modules():
            if isinstance(module, TextAttention):
                module.mixed = in_bf16(module.mixed)  # type: ignore[method-assign]
        return patch.ran.plain

    def _generate(self, forced: Tensor | None = None) -> tuple[Tensor, list[Tensor], Watched]:
        facts, method, guided = self.vector.facts["config"], Watched(), []
        sampling = Sampling(cfg_scale=facts["cfg_list"][0], temperature=0.0)
        samples = len(self.model.texts)
        tokens = self.model.generate(torch.arange(samples), range(samples), method, sampling, Memory(), forced=forced,
                                     see=lambda _, logits: guided.append(logits / facts["tau_list"][0]))
        return tokens, guided, method


def in_bf16(mixed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def through(*parts: Tensor) -> Tensor:
        *features, attended = parts
        return mixed(*(part.bfloat16().float() for part in features), attended).bfloat16().float()

    return through


def bits_of_file(vector: Vector) -> list[Tensor]:
    """Return the file's bits by scale: (batch, side², bits)."""
    return [vector[name].flatten(1, 3) for name, _ in vector.matching("out/bits/*")]


def tokens_of(vector: Vector) -> Tensor:
    return bsq.packed_bits(torch.cat(bits_of_file(vector), 1))


def config_of(facts: dict[str, Any]) -> InfinityConfig:
    c = facts["config"]
    assert c["mlp_ratio"] == 4
    assert c["h_div_w"] == 1
    assert len(set(c["cfg_list"])) == len(set(c["tau_list"])) == 1
    sides = tuple(height for _, height, _ in c["scale_schedule"])
    return InfinityConfig(c["depth"], c["num_heads"], c["embed_dim"], c["block_chunks"], sides, c["codebook_dim"], text=c["text_channels"],
                          longest=c["text_maxlen"], norm_eps=c["norm_eps"])


def subject(vector: Vector) -> Subject:
    c = vector.facts["config"]
    config = config_of(vector.facts)
    model = Infinity(config, vector["text/kv"].split(c["text_lens"]))
    images = BSQ(BSQConfig(c["vae_base_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"], config.sides, config.width))
    state = {bsq.official(name): tensor for name, tensor in below(vector.weights(), "vae/").items()}
    assert images.config.factor == c["vae_patch_size"]
    return Subject(vector, filled(model, below(vector.weights(), "var/")), filled(images, state, "encoder."))


def codes(subject: Subject, vector: Vector, scale: str) -> Tensor:
    quantizer = subject.model.quantizer
    return quantizer.codes(quantizer.split(tokens_of(vector))[int(scale)], int(scale))


def image_bytes(subject: Subject, vector: Vector) -> Tensor:
    """Return bytes as the authors write them: truncated, blue first."""
    pixels = (subject.images.decode(tokens_of(vector)) + 1) / 2 * 255
    return pixels.permute(0, 2, 3, 1).flip(-1).to(torch.uint8)


def rotations(subject: Subject, vector: Vector) -> Tensor:
    c = subject.model.config
    table = rope_table(c.head_dim, c.sides, c.rope_base, torch.device("cpu"))
    return torch.stack((table.real, table.imag))


def slot_part(part: int, name: str) -> Check:
    def measure(subject: Subject, vector: Vector, which: str) -> float:
        slot = subject.ran.method.slots[subject.model.sites[int(which)]]
        return slot_apart(slot, part, vector[name.replace("*", which)])

    return Check(name.partition("/")[2], LOGITS, measure, (name,))


KINDS = {
    "small": Kind(subject, (
        Check("bits", 0.0, lambda subject, vector: differing(
            bits_of(subject.tokens, subject.model.config.bits), torch.cat(bits_of_file(vector), 1)), ("out/bits/*",)),
        compare("guided", "out/bit_logits_cfg/*", lambda subject, vector, i: subject.ran.guided[int(i)].flatten(1, 2)),
        compare("logits", "out/logits_pre/*", lambda subject, vector, i: subject.ran.plain[int(i)].flatten(2)),
        compare("hidden", "out/hidden_last/*", lambda subject, vector, i: subject.ran.hidden[int(i)]),
        # By root mean square, since summation order moves single values across a bf16 step. One such value moves a logit by up to 0.012.
        # The most seen on any processor is 0.0019; without rounding it is 0.0065.
        compare("rounded", "out_bf16ca/logits_pre/*", lambda subject, vector, i: subject.rounded[int(i)].flatten(2), 4e-3, by=spread),
        compare("codes", "out/codes/*", codes, 1e-6, by=lambda actual, expected: apart(actual, expected[:, :, 0])),
        compare("next_maps", "out/next_input/*", lambda subject, vector, i: subject.ran.fed[int(i)], 1e-5),
        compare("summed", "out/summed_codes", lambda subject, vector: subject.images.quantizer.restore(tokens_of(vector)), 1e-5),
        compare("image", "out/decoded", lambda subject, vector: subject.images.decode(tokens_of(vector))),
        compare("image_bytes", "out/image_uint8_bgr", image_bytes, RARE, by=differing_bytes),
        compare("rotations", "rope_cache_prefix", rotations, 1e-5),
        slot_part(0, "out/cached_k_block*"),
        slot_part(1, "out/cached_v_block*"),
    ), "the Infinity transformer, two texts of different length in one batch, its bitwise quantiser, its slots and its image decoder",
        ("full",)),
}
