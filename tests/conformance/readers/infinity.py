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

from ..checks import Check, Kind, Vector, apart, differing, differing_bytes, spread, worst
from .var import Watched

LOGITS = 1e-4
RARE = 1e-3  # share of bytes that rounding may move by one


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
        cond = model.text_proj_for_sos(features, attended)
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


def part_of(vector: Vector, part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): tensor for name, tensor in vector.weights().items() if name.startswith(f"{part}/")}


def subject(vector: Vector) -> Subject:
    c = vector.facts["config"]
    config = config_of(vector.facts)
    model = Infinity(config, vector["text/kv"].split(c["text_lens"]))
    model.load_state_dict(part_of(vector, "var"))
    images = BSQ(BSQConfig(c["vae_base_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"], config.sides, config.width))
    state = {bsq.official(name): tensor for name, tensor in part_of(vector, "vae").items()}
    missing, unexpected = images.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.startswith("encoder.") for name in missing), missing
    assert images.config.factor == c["vae_patch_size"]
    return Subject(vector, model.eval(), images.eval())


def scales(name: str, part: str, measure: Callable[[Ran, int, Tensor], float], tolerance: float = LOGITS) -> Check:
    """Check the largest deviation over all scales."""

    def measured(subject: Subject, vector: Vector) -> float:
        return worst(measure(subject.ran, int(i), vector[name]) for name, i in vector.matching(f"out/{part}/*"))

    return Check(name, tolerance, measured, (f"out/{part}/*",))


def bits(subject: Subject, vector: Vector) -> float:
    """Compare every bit exactly."""
    return differing(bits_of(subject.tokens, subject.model.config.bits), torch.cat(bits_of_file(vector), 1))


def codes(subject: Subject, vector: Vector) -> float:
    split = subject.model.quantizer.split(tokens_of(vector))
    quantizer = subject.model.quantizer
    return worst(apart(quantizer.codes(split[int(i)], int(i)), vector[name][:, :, 0]) for name, i in vector.matching("out/codes/*"))


def summed(subject: Subject, vector: Vector) -> float:
    return max(apart(subject.ran.maps[-1], vector["out/summed_codes"]),
               apart(subject.images.quantizer.restore(tokens_of(vector)), vector["out/summed_codes"]))


def image(subject: Subject, vector: Vector) -> float:
    return apart(subject.images.decode(tokens_of(vector)).detach(), vector["out/decoded"])


def image_bytes(subject: Subject, vector: Vector) -> float:
    """Compare bytes as the authors write them: truncated, blue first."""
    pixels = (subject.images.decode(tokens_of(vector)) + 1) / 2 * 255
    return differing_bytes(pixels.detach().permute(0, 2, 3, 1).flip(-1).to(torch.uint8), vector["out/image_uint8_bgr"])


def rotations(subject: Subject, vector: Vector) -> float:
    c, table = subject.model.config, vector["rope_cache_prefix"]
    own = rope_table(c.head_dim, c.sides, c.rope_base, torch.device("cpu"))
    return apart(torch.stack((own.real, own.imag)), table)


def rounded(subject: Subject, vector: Vector) -> float:
    """Compare by root mean square, since summation order moves single values across a bf16 step.

    One such value moves a logit by up to 0.012. The most seen on any processor is 0.0019; without rounding it is 0.0065.
    """
    return worst(spread(subject.rounded[int(i)].flatten(2), vector[name]) for name, i in vector.matching("out_bf16ca/logits_pre/*"))


def slot_part(part: int, name: str) -> Check:
    def measure(subject: Subject, vector: Vector, which: str) -> float:
        expected, slot = vector[name.replace("*", which)], subject.ran.method.slots[subject.model.sites[int(which)]]
        live = expected.shape[2]
        return apart(slot.read(slot.bank.runs[0], live)[part], expected) if slot.live == [live] else float("inf")

    return Check(name.partition("/")[2], LOGITS, measure, (name,))


KINDS = {
    "small": Kind(subject, (
        Check("bits", 0.0, bits, ("out/bits/*",)),
        scales("guided", "bit_logits_cfg", lambda ran, i, expected: apart(ran.guided[i].flatten(1, 2), expected)),
        scales("logits", "logits_pre", lambda ran, i, expected: apart(ran.plain[i].flatten(2), expected)),
        scales("hidden", "hidden_last", lambda ran, i, expected: apart(ran.hidden[i], expected)),
        Check("rounded", 4e-3, rounded, ("out_bf16ca/logits_pre/*",)),
        Check("codes", 1e-6, codes, ("out/codes/*",)),
        scales("next_maps", "next_input", lambda ran, i, expected: apart(ran.fed[i], expected), 1e-5),
        Check("summed", 1e-5, summed, ("out/summed_codes",)),
        Check("image", LOGITS, image, ("out/decoded",)),
        Check("image_bytes", RARE, image_bytes, ("out/image_uint8_bgr",)),
        Check("rotations", 1e-5, rotations, ("rope_cache_prefix",)),
        slot_part(0, "out/cached_k_block*"),
        slot_part(1, "out/cached_v_block*"),
    ), "the Infinity transformer, two texts of different length in one batch, its bitwise quantiser, its slots and its image decoder",
        ("full",)),
}
