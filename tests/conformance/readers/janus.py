"""Janus-Pro: the generator (kind ``small``) and its image decoder (kind ``small_vq``).

Prompts of different length run in one batch; the authors ran them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.models import janus
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.vision.vq import VQ, VQConfig

from ..checks import LOGITS, RARE, Check, Kind, Vector, compare, differing, differing_bytes, filled
from .prompted import Noting, Ran

UNUSED = "language_model.lm_head.weight"  # the head for text


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any]) -> JanusConfig:
    c = facts["config"]
    decoder = LlamaConfig(c["num_hidden_layers"], c["num_attention_heads"], c["hidden_size"], c["intermediate_size"], c["vocab_size"],
                          c["num_key_value_heads"], c["rms_norm_eps"], c["rope_theta"])
    assert decoder.head_dim == c["head_dim"]
    height, width = c["grid"]
    assert height == width
    return JanusConfig(decoder, c["num_image_codes"], c["code_dim"], height)


def runs_of(vector: Vector) -> list[str]:
    """Return the letters of the file's runs, in order: the labels of the samples."""
    return [which for _, which in vector.matching("run_*/prompt_ids")]


def prompts_of(vector: Vector) -> Prompts:
    """Return the file's prompts, conditional and unconditional."""
    facts = [vector.facts[f"run_{which}"] for which in runs_of(vector)]
    conditional_ids = tuple(tuple(vector[f"run_{which}/prompt_ids"].tolist()) for which in runs_of(vector))
    assert [list(ids) for ids in conditional_ids] == [fact["prompt_ids"] for fact in facts]
    return Prompts(conditional_ids, tuple(janus.unconditional(ids, vector.facts["config"]["pad"]) for ids in conditional_ids))


class NotingJanus(Noting, Janus):
    """Janus that records its passes."""


@dataclass
class Generator:
    """The subject of the checks. ``ran``: by whether tokens were forced."""

    model: NotingJanus
    ran: dict[bool, Ran] = field(default_factory=dict)

    def run(self, vector: Vector, forced: bool) -> Ran:
        if forced not in self.ran:
            runs = runs_of(vector)
            tokens = torch.stack([vector[f"run_{which}/codes"] for which in runs]) if forced else None
            self.ran[forced] = Ran.of(self.model, len(runs), vector.facts["config"]["cfg_weight"], tokens)
        return self.ran[forced]


def generator(vector: Vector) -> Generator:
    model = NotingJanus(config_of(vector.facts), prompts_of(vector))
    weights = vector.weights()
    del weights[UNUSED]
    model.load_state_dict(weights)
    return Generator(model.eval())


def row_of(vector: Vector, which: str) -> int:
    return runs_of(vector).index(which)


def slots(layer: int) -> Check:
    """Check keys and values of a layer in both rows: the prompt and all fed codes."""

    def measure(subject: Generator, vector: Vector, which: str) -> float:
        stored = [vector[f"run_{which}/final_{part}_layer{layer}"] for part in "kv"]
        rows = (row_of(vector, which), len(runs_of(vector)) + row_of(vector, which))
        return max(subject.run(vector, True).slot_apart(layer, row, [part[branch] for part in stored]) for branch, row in enumerate(rows))

    return Check(f"slots{layer}_*", LOGITS, measure, tuple(f"run_*/final_{part}_layer{layer}" for part in "kv"))


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
def to_uint8(images: Tensor) -> Tensor:
    """Convert images in [−1, 1] to bytes (B, H, W, 3) as published: (x + 1)/2·255, clamped, truncated."""
    return ((images + 1) / 2 * 255).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def decoder(vector: Vector) -> VQ:
    c = vector.facts["config"]
    number, width = c["codebook"]
    model = VQ(VQConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"], number, width))
    assert model.config.factor == c["upsample"]
    weights = {janus.official_tokenizer(name): tensor for name, tensor in vector.weights().items()}
    return filled(model, weights)


def image_of(model: VQ, vector: Vector, which: str) -> Tensor:
    return model.decode(vector[f"run_{which}/codes"])


KINDS = {
    "small": Kind(generator, (
        compare("codes_*", "run_*/codes", lambda subject, vector, which: subject.run(vector, False).tokens[row_of(vector, which)],
                0.0, needs=("run_*/prompt_ids",), by=differing),
        compare("guided_*", "run_*/logits_cfg", lambda subject, vector, which: subject.run(vector, True).guided[row_of(vector, which)]),
        compare("conditional_*", "run_*/logits_cond",
                lambda subject, vector, which: subject.run(vector, True).plain[row_of(vector, which)]),
        compare("unconditional_*", "run_*/logits_uncond",
                lambda subject, vector, which: subject.run(vector, True).plain[len(runs_of(vector)) + row_of(vector, which)]),
        compare("hidden_*", "run_*/last_hidden_cond",
                lambda subject, vector, which: subject.run(vector, True).hidden[row_of(vector, which)]),
        slots(0),
        slots(2),
    ), "the Janus-Pro generator, two prompts of different length in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        compare("image_*", "run_*/decoded", image_of),
        compare("image_bytes_*", "run_*/pixels_u8", lambda *arguments: to_uint8(image_of(*arguments)), RARE, by=differing_bytes),
    ), "Janus-Pro's image tokenizer, decoding"),
}
