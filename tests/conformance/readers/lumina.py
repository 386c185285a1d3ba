"""Lumina-mGPT: the generator (kind ``small``) and its image decoder (kind ``small_vq``).

Both branches of guidance run in one batch; the authors ran them separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Step
from cachemark.contract.method import Method, Uncached
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.llama import LlamaConfig
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.prompts import Prompts
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.vqgan import VQGAN, VQGANConfig

from ..checks import Check, Kind, Vector, apart, differing, differing_bytes

LOGITS = 1e-4
RARE = 1e-3  # share of bytes that rounding may move by one


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any], which: str) -> LuminaConfig:
    c, ids, run = facts["config"], facts["token_ids"], facts[f"run_{which}"]
    decoder = LlamaConfig(c["num_hidden_layers"], c["num_attention_heads"], c["hidden_size"], c["intermediate_size"], c["vocab_size"],
                          c["num_key_value_heads"], c["rms_norm_eps"], c["rope_theta"], qk_norm=True)
    assert decoder.head_dim == c["head_dim"]
    vocabulary = Vocabulary(0, ids["first_image"], ids["last_image"] - ids["first_image"] + 1, ids["boi"], ids["sep"], ids["newline"],
                            ids["grid_base"])
    config = LuminaConfig(decoder, run["h_grids"], run["w_grids"], vocabulary)
    assert (config.lines, config.line, config.lines * config.line) == (run["rows"], run["row_len"], run["n_visual"])
    return config


class NotingLumina(Lumina):
    """Lumina that records the logits of every pass, rows first."""

    def __init__(self, config: LuminaConfig, prompts: Prompts) -> None:
        super().__init__(config, prompts)
        self.plain: list[Tensor] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.plain.append(super().logits(hidden))
        return self.plain[-1]


@dataclass(frozen=True)
class Ran:
    """A generation of one prompt: tokens (N,), guided logits (N, vocab), both rows' (2, N, vocab)."""

    tokens: Tensor
    guided: Tensor
    plain: Tensor
    method: Method


@dataclass
class Generator:
    """The subject of the checks. ``ran``: by run and by whether tokens were forced."""

    vector: Vector
    make: Callable[[LuminaConfig, Prompts], NotingLumina] = NotingLumina
    ran: dict[tuple[str, bool], Ran] = field(default_factory=dict)

    def model(self, which: str) -> NotingLumina:
        config, ids = config_of(self.vector.facts, which), tuple(self.vector[f"run_{which}/prompt_ids"].tolist())
        assert ids[-2:] == (config.ids.size + config.height, config.ids.size + config.width)
        model = self.make(config, Prompts((ids,), (ids[-3:],)))
        model.load_state_dict(self.vector.weights())
        return model.eval()

    def run(self, which: str, forced: bool) -> Ran:
        if (which, forced) not in self.ran:
            self.ran[which, forced] = self._run(which, forced)
        return self.ran[which, forced]

    def _run(self, which: str, forced: bool) -> Ran:
        model, method, guided = self.model(which), Full(), []
        tokens = self.vector[f"run_{which}/new_tokens"][None, :-1] if forced else None
        drawn = model.generate(torch.tensor([0]), [0], method, sampling_of(self.vector), Memory(), forced=tokens,
                               see=lambda _, logits: guided.append(logits[0].clone()))
        return Ran(drawn[0], torch.cat(guided), torch.stack(model.plain, 1), method)


def sampling_of(vector: Vector) -> Sampling:
    return Sampling(cfg_scale=vector.facts["cfg_scale"], temperature=0.0)


def codes(subject: Generator, vector: Vector, which: str) -> float:
    """Compare every token exactly, except the one after the image."""
    return differing(subject.run(which, False).tokens, vector[f"run_{which}/new_tokens"][:-1])


def branch(row: int, name: str) -> Callable[..., float]:
    def measure(subject: Generator, vector: Vector, which: str) -> float:
        return apart(subject.run(which, True).plain[row], vector[f"run_{which}/logits_{name}"][:-1])

    return measure


def guided(subject: Generator, vector: Vector, which: str) -> float:
    """Compare allowed logits."""
    actual, scores = subject.run(which, True).guided, vector[f"run_{which}/logits_cfg"][:-1]
    ids = config_of(vector.facts, which).ids
    allowed = torch.zeros_like(actual, dtype=torch.bool)
    ends = vector[f"run_{which}/new_tokens"][:-1] == ids.line_end
    allowed[~ends, ids.first : ids.first + ids.codes] = True
    allowed[ends, ids.line_end] = True
    return max(apart(actual[allowed], scores[allowed]), float((actual[~allowed] > -1e8).any()))


def kept_by_filters(subject: Generator, vector: Vector, which: str) -> float:
    """Compare the tokens allowed by position and top-k."""
    setting = Sampling(top_k=vector.facts[f"run_{which}"]["image_top_k"])
    filtered = filter_logits(subject.run(which, True).guided, setting)
    return differing(filtered > -1e8, vector[f"run_{which}/scores_processed"][:-1].isfinite())


def prefill(subject: Generator, vector: Vector, which: str) -> float:
    """Compare logits of all ids of a prompt in one pass."""
    model = subject.model(which)
    tokens = model.feed(vector[f"run_{which}/prompt_ids"][None], Step(0, 1), torch.tensor([0]), torch.tensor([0]))
    return apart(model.logits(model(tokens, Step(0, 1), Uncached()))[0], vector[f"run_{which}/prefill_logits"])


def slots(layer: int) -> Check:
    """Check keys and values of a layer in both rows: the prompt and all fed tokens."""

    def measure(subject: Generator, vector: Vector, which: str) -> float:
        ran, deviations = subject.run(which, True), []
        slot = next(slot for site, slot in ran.method.slots.items() if site.layer == layer)
        runs = list(zip(slot.bank.runs, slot.live, strict=True))
        if len(runs) != len(("conditional", "unconditional")):
            return float("inf")
        for (run, live), name in zip(runs, ("cond", "uncond"), strict=True):
            for part, letter in zip(slot.read(run, live), "kv", strict=True):
                expected = vector[f"run_{which}/{name}_{letter}_layer{layer}"]
                deviations.append(apart(part, expected[:, :, :live]) if live == expected.shape[2] - 1 else float("inf"))
        return max(deviations)

    needs = tuple(f"run_*/{name}_{part}_layer{layer}" for name in ("cond", "uncond") for part in "kv")
    return Check(f"slots{layer}_*", LOGITS, measure, needs)


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
def to_uint8(images: Tensor) -> Tensor:
    """Convert images to bytes (B, H, W, 3) as published: clamped, (x + 1)/2·255, truncated."""
    return ((images.clamp(-1, 1) + 1) / 2 * 255).permute(0, 2, 3, 1).to(torch.uint8)


@dataclass(frozen=True)
class Decoder:
    """The subject of the checks."""

    model: VQGAN
    grids: dict[str, tuple[int, int]]
    to_uint8: Callable[[Tensor], Tensor] = to_uint8

    def image(self, vector: Vector, which: str) -> Tensor:
        return self.model.decode(vector[f"run_{which}/codes"][None], self.grids[which]).detach()


def decoder(vector: Vector) -> Decoder:
    c = vector.facts["config"]
    d = c["ddconfig"]
    model = VQGAN(VQGANConfig(d["ch"], tuple(d["ch_mult"]), d["num_res_blocks"], d["z_channels"], c["n_embed"], c["embed_dim"]))
    missing, unexpected = model.load_state_dict(vector.weights(), strict=False)
    assert not unexpected
    assert all(name.startswith("encoder.") for name in missing), missing
    shapes = {which: vector.tensors[name].shape for name, which in vector.matching("run_*/decoded")}
    grids = {which: (shape[2] // model.config.factor, shape[3] // model.config.factor) for which, shape in shapes.items()}
    return Decoder(model.eval(), grids)


def image(subject: Decoder, vector: Vector, which: str) -> float:
    return apart(subject.image(vector, which), vector[f"run_{which}/decoded"])


def image_bytes(subject: Decoder, vector: Vector, which: str) -> float:
    return differing_bytes(subject.to_uint8(subject.image(vector, which))[0], vector[f"run_{which}/pixels_u8"])


KINDS = {
    "small": Kind(Generator, (
        Check("codes_*", 0.0, codes, ("run_*/new_tokens", "run_*/prompt_ids")),
        Check("guided_*", LOGITS, guided, ("run_*/logits_cfg",)),
        Check("conditional_*", LOGITS, branch(0, "cond"), ("run_*/logits_cond",)),
        Check("unconditional_*", LOGITS, branch(1, "uncond"), ("run_*/logits_uncond",)),
        Check("kept_*", 0.0, kept_by_filters, ("run_*/scores_processed",)),
        Check("prefill_*", LOGITS, prefill, ("run_*/prefill_logits",)),
        slots(0),
        slots(2),
    ), "the Lumina-mGPT generator, its line ends, both rows of guidance in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        Check("image_*", LOGITS, image, ("run_*/decoded",)),
        Check("image_bytes_*", RARE, image_bytes, ("run_*/pixels_u8",)),
    ), "Chameleon's image tokenizer, decoding"),
}
