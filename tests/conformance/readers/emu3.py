"""Emu3-Gen: the generator (kind ``small``) and its image decoder (kind ``small_vq``), by the transformers library.

Both branches of guidance run in one batch; the library ran them separately, and combined log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.core.spec import Sampling
from cachemark.models import emu3
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.lined import ImageIds, LinedDecoder
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.emu3_vq import Emu3VQ, Emu3VQConfig

from ..checks import LOGITS, Check, Kind, Vector, apart, compare, differing
from .prompted import Noting, Ran


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any], which: str) -> Emu3Config:
    c, run = facts["config"], facts[f"run_{which}"]
    decoder = LlamaConfig(c["num_hidden_layers"], c["num_attention_heads"], c["hidden_size"], c["intermediate_size"], c["vocab_size"],
                          c["num_key_value_heads"], c["rms_norm_eps"], facts["rope_theta"])
    return Emu3Config(decoder, run["lines"], run["line"], ImageIds(facts["first"], facts["codes"], facts["line_end"]))


class NotingEmu3(Noting, Emu3):
    """Emu3 that records its passes."""


@dataclass
class Generator:
    """The subject of the checks. ``ran``: by run and by whether tokens were forced."""

    vector: Vector
    ran: dict[tuple[str, bool], Ran] = field(default_factory=dict)

    def run(self, which: str, forced: bool) -> Ran:
        if (which, forced) not in self.ran:
            config = config_of(self.vector.facts, which)
            conditional, negative = (tuple(self.vector[f"run_{which}/{name}_ids"].tolist()) for name in ("prompt", "negative"))
            model = NotingEmu3(config, Prompts((conditional,), (negative,)))
            model.load_state_dict({emu3.official(name): tensor for name, tensor in self.vector.weights().items()})
            tokens = of_image(self.vector, "new_tokens", which)[None] if forced else None
            self.ran[which, forced] = Ran.of(model.eval(), 1, self.vector.facts["cfg_scale"], tokens)
        return self.ran[which, forced]


def of_image(vector: Vector, name: str, which: str) -> Tensor:
    """Return the rows of a tensor that belong to image tokens, without those that close the image."""
    config = config_of(vector.facts, which)
    return vector[f"run_{which}/{name}"][: config.lines * config.line]


def guided(subject: Generator, vector: Vector, which: str) -> float:
    """Compare the log-probabilities of allowed tokens."""
    scores, actual = of_image(vector, "scores", which), subject.run(which, True).guided[0]
    allowed = scores.isfinite()
    return max(apart(actual.log_softmax(-1)[allowed], scores.log_softmax(-1)[allowed]), float((actual[~allowed] > -1e8).any()))


def kept(subject: Generator, vector: Vector, which: str) -> float:
    """Compare the tokens allowed by position and top-k."""
    filtered = filter_logits(subject.run(which, True).guided[0], Sampling(top_k=vector.facts["top_k"]))
    return differing(filtered > -1e8, of_image(vector, "kept", which))


def slots(layer: int) -> Check:
    """Check keys and values of a layer in both rows: the prompt and all fed tokens but those after the image."""

    def measure(subject: Generator, vector: Vector, which: str) -> float:
        config = config_of(vector.facts, which)
        lengths = [len(vector[f"run_{which}/{name}_ids"]) + config.lines * config.line - 1 for name in ("prompt", "negative")]
        stored = [[vector[f"run_{which}/{branch}_{part}_layer{layer}"][:, :entries] for part in "kv"]
                  for branch, entries in zip(("cond", "uncond"), lengths, strict=True)]
        return max(subject.run(which, True).slot_apart(layer, row, parts) for row, parts in enumerate(stored))

    needs = tuple(f"run_*/{branch}_{part}_layer{layer}" for branch in ("cond", "uncond") for part in "kv")
    return Check(f"slots{layer}_*", LOGITS, measure, needs)


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
def decoder(vector: Vector) -> Emu3VQ:
    c = vector.facts["config"]
    model = Emu3VQ(Emu3VQConfig(c["base_channels"], tuple(c["channel_multiplier"]), c["num_res_blocks"], c["embed_dim"], c["codebook_size"],
                                tuple(c["attn_resolutions"]), c["temporal_downsample_factor"]))
    model.load_state_dict({emu3.official_tokenizer(name): tensor for name, tensor in vector.weights().items()})
    return model.eval()


def image_of(model: Emu3VQ, vector: Vector, which: str) -> Tensor:
    """Decode the codes of a run as image tokens with ends of lines."""
    codes = vector[f"run_{which}/codes"]
    ids = ImageIds(7, model.config.codebook_size, 3)
    config = Emu3Config(emu3.GEN.decoder, *codes.shape, ids)
    tokens = torch.cat((codes + ids.first, torch.full((len(codes), 1), ids.line_end)), 1)
    return LinedDecoder(config, model).decode(tokens.flatten()[None])


KINDS = {
    "small": Kind(Generator, (
        compare("codes_*", "run_*/new_tokens", lambda subject, vector, which: subject.run(which, False).tokens[0], 0.0,
                needs=("run_*/prompt_ids",), by=lambda actual, expected: differing(actual, expected[:-3])),
        Check("guided_*", LOGITS, guided, ("run_*/scores",)),
        compare("conditional_*", "run_*/logits_cond", lambda subject, vector, which: subject.run(which, True).plain[0],
                by=lambda actual, expected: apart(actual, expected[:-3])),
        compare("unconditional_*", "run_*/logits_uncond", lambda subject, vector, which: subject.run(which, True).plain[1],
                by=lambda actual, expected: apart(actual, expected[:-3])),
        Check("kept_*", 0.0, kept, ("run_*/kept",)),
        slots(0),
        slots(2),
    ), "the Emu3 generator of the transformers library, its line ends, both rows of guidance in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        compare("image_*", "run_*/decoded", image_of),
    ), "Emu3's image tokenizer in the transformers library, decoding"),
}
