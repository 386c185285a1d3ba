"""Lumina-mGPT, whose authors ran branches separately: the generator (kind ``small``) and its image decoder (kind ``small_vq``)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.layout import Step
from cachemark.contract.method import Uncached
from cachemark.core.spec import Sampling
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.prompts import Prompts
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.vq import VQConfig
from cachemark.models.vision.vqgan import VQGAN

from ..checks import LOGITS, RARE, Check, Kind, Vector, apart, compare, differing, differing_bytes, filled
from .prompted import Generator, Noting, decoder_of, noting, part, slots, to_uint8


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any], which: str) -> LuminaConfig:
    c, ids, run = facts["config"], facts["token_ids"], facts[f"run_{which}"]
    vocabulary = Vocabulary(ids["first_image"], ids["last_image"] - ids["first_image"] + 1, ids["newline"], 0, ids["boi"], ids["sep"],
                            ids["grid_base"])
    config = LuminaConfig(decoder_of(c, c["rope_theta"], qk_norm=True), run["h_grids"], run["w_grids"], vocabulary)
    assert (config.lines, config.line, config.lines * config.line) == (run["rows"], run["row_len"], run["n_visual"])
    return config


def generator(vector: Vector, which: str) -> Noting:
    config, ids = config_of(vector.facts, which), tuple(vector[f"run_{which}/prompt_ids"].tolist())
    assert ids[-2:] == (config.ids.size + config.height, config.ids.size + config.width)
    return noting(Lumina, config, Prompts((ids,), (ids[-3:],)), weights=vector.weights())


def guided(subject: Generator, vector: Vector, which: str) -> float:
    actual, scores = subject.run(which).guided[0], vector[f"run_{which}/logits_cfg"][:-1]
    ids = config_of(vector.facts, which).ids
    allowed = torch.zeros_like(actual, dtype=torch.bool)
    ends = vector[f"run_{which}/new_tokens"][:-1] == ids.line_end
    allowed[~ends, ids.first : ids.first + ids.codes] = True
    allowed[ends, ids.line_end] = True
    return max(apart(actual[allowed], scores[allowed]), float((actual[~allowed] > -1e8).any()))


def kept(subject: Generator, vector: Vector, which: str) -> float:
    setting = Sampling(top_k=vector.facts[f"run_{which}"]["image_top_k"])
    filtered = filter_logits(subject.run(which).guided[0], setting)
    return differing(filtered > -1e8, vector[f"run_{which}/scores_processed"][:-1].isfinite())


def prefill(subject: Generator, vector: Vector, which: str) -> Tensor:
    """Return logits of all ids of a prompt in one pass."""
    model = generator(vector, which)
    tokens = model.feed(vector[f"run_{which}/prompt_ids"][None], Step(0, 1), torch.tensor([0]), torch.tensor([0]))
    return model.logits(model(tokens, Step(0, 1), Uncached()))[0]


def before_the_end(by: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    """Compare with all stored entries but the one after the image."""
    return lambda actual, expected: by(actual, expected[:-1])


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
def decoder(vector: Vector) -> VQGAN:
    c = vector.facts["config"]
    d = c["ddconfig"]
    config = VQConfig(d["ch"], tuple(d["ch_mult"]), d["num_res_blocks"], d["z_channels"], c["n_embed"], c["embed_dim"])
    return filled(VQGAN(config), vector.weights())


def image_of(model: VQGAN, vector: Vector, which: str) -> Tensor:
    height, width = vector.tensors[f"run_{which}/decoded"].shape[2:]
    return model.decode(vector[f"run_{which}/codes"][None], (height // model.config.factor, width // model.config.factor))


KINDS = {
    "small": Kind(lambda vector: Generator(vector, generator, lambda vector, which: vector[f"run_{which}/new_tokens"][:-1],
                                           vector.facts["cfg_scale"]), (
        compare("codes_*", "run_*/new_tokens", part("tokens", forced=False), 0.0, needs=("run_*/prompt_ids",),
                by=before_the_end(differing)),
        Check("guided_*", LOGITS, guided, ("run_*/logits_cfg",)),
        compare("conditional_*", "run_*/logits_cond", part("plain"), by=before_the_end(apart)),
        compare("unconditional_*", "run_*/logits_uncond", part("plain", 1), by=before_the_end(apart)),
        Check("kept_*", 0.0, kept, ("run_*/scores_processed",)),
        compare("prefill_*", "run_*/prefill_logits", prefill),
        *(slots(layer, ("cond_kv", "uncond_kv"), lambda vector, name, _: vector[name][0, :, :-1]) for layer in (0, 2)),
    ), "the Lumina-mGPT generator, its line ends, both rows of guidance in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        compare("image_*", "run_*/decoded", image_of),
        compare("image_bytes_*", "run_*/pixels_u8", lambda *arguments: to_uint8(image_of(*arguments))[0], RARE, by=differing_bytes),
    ), "Chameleon's image tokenizer, decoding"),
}
