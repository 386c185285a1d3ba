"""GLM-Image's autoregressive stage (kind ``small``), by the transformers library.

Prompts of different length run in one batch; the library ran them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.models.glm_image import GlmImage, GlmImageConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts

from ..checks import LOGITS, Check, Kind, Vector, compare, differing
from .prompted import Noting, Ran


def config_of(facts: dict[str, Any]) -> GlmImageConfig:
    c, rope = facts["config"], facts["rope"]
    decoder = LlamaConfig(c["num_hidden_layers"], c["num_attention_heads"], c["hidden_size"], c["intermediate_size"], c["vocab_size"],
                          c["num_key_value_heads"], c["rms_norm_eps"], rope["rope_theta"], qkv_bias=True)
    first, second, third = rope["mrope_section"]
    assert first + second + third == decoder.head_dim * rope["partial_rotary_factor"] / 2
    return GlmImageConfig(decoder, facts["codes"], c["vision_vocab_size"], facts["grid"], facts["preview"], (first, second, third))


def runs_of(vector: Vector) -> list[str]:
    """Return the letters of the file's runs, in order: the labels of the samples."""
    return [which for _, which in vector.matching("run_*/prompt_ids")]


class NotingGlmImage(Noting, GlmImage):
    """GLM-Image that records its passes."""


@dataclass
class Generator:
    """The subject of the checks. ``ran``: by whether tokens were forced."""

    model: NotingGlmImage
    ran: dict[bool, Ran] = field(default_factory=dict)

    def run(self, vector: Vector, forced: bool) -> Ran:
        if forced not in self.ran:
            runs = runs_of(vector)
            tokens = torch.stack([vector[f"run_{which}/new_tokens"] for which in runs]) if forced else None
            self.ran[forced] = Ran.of(self.model, len(runs), 1.0, tokens)
        return self.ran[forced]


def generator(vector: Vector) -> Generator:
    prompts = Prompts(tuple(tuple(vector[f"run_{which}/prompt_ids"].tolist()) for which in runs_of(vector)))
    model = NotingGlmImage(config_of(vector.facts), prompts)
    model.load_state_dict(vector.weights())
    return Generator(model.eval())


def logits_of(subject: Generator, vector: Vector, which: str) -> Tensor:
    """Return the logits of every output of the head, of which the model keeps those of codes."""
    hidden = subject.run(vector, True).hidden[runs_of(vector).index(which)]
    return subject.model.lm_head(hidden)


def codes_of(subject: Generator, vector: Vector, which: str) -> Tensor:
    return subject.run(vector, False).tokens[runs_of(vector).index(which)]


def kept(subject: Generator, vector: Vector, which: str) -> float:
    """Compare the logits that are sampled from with those of codes."""
    actual, expected = subject.run(vector, True).guided[runs_of(vector).index(which)], vector[f"run_{which}/logits_cond"]
    codes = config_of(vector.facts).codes
    return float("inf") if actual.size(-1) != codes else float((actual - expected[:, :codes]).abs().max())


def slots(layer: int) -> Check:
    """Check keys and values of a layer: the prompt and all fed codes."""

    def measure(subject: Generator, vector: Vector, which: str) -> float:
        stored = [vector[f"run_{which}/cond_{part}_layer{layer}"] for part in "kv"]
        return subject.run(vector, True).slot_apart(layer, runs_of(vector).index(which), stored)

    return Check(f"slots{layer}_*", LOGITS, measure, tuple(f"run_*/cond_{part}_layer{layer}" for part in "kv"))


KINDS = {
    "small": Kind(generator, (
        compare("codes_*", "run_*/new_tokens", codes_of, 0.0, needs=("run_*/prompt_ids",), by=differing),
        compare("logits_*", "run_*/logits_cond", logits_of),
        Check("sampled_*", LOGITS, kept, ("run_*/logits_cond",)),
        slots(0),
        slots(2),
    ), "GLM-Image's autoregressive stage in the transformers library, preview and image, two prompts in one batch, and its slots",
        ("full",)),
}
