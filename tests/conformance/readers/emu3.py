"""Emu3-Gen, by transformers, which ran branches of guidance separately: generator (``small``) and image decoder (``small_vq``)."""

from typing import Any

import torch
from torch import Tensor

from cachemark.core.spec import Sampling
from cachemark.models import emu3
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.lined import ImageIds, LinedDecoder
from cachemark.models.prompts import Prompts
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.emu3_vq import Emu3VQ, Emu3VQConfig

from ..checks import LOGITS, Check, Kind, Vector, apart, compare, differing, filled
from .prompted import Generator, Noting, decoder_of, noting, part, slots


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any], which: str) -> Emu3Config:
    run, ids = facts[f"run_{which}"], ImageIds(facts["first"], facts["codes"], facts["line_end"])
    return Emu3Config(decoder_of(facts["config"], facts["rope_theta"]), run["lines"], run["line"], ids)


def generator(vector: Vector, which: str) -> Noting:
    conditional, negative = (tuple(vector[f"run_{which}/{name}_ids"].tolist()) for name in ("prompt", "negative"))
    weights = {emu3.official(name): tensor for name, tensor in vector.weights().items()}
    return noting(Emu3, config_of(vector.facts, which), Prompts((conditional,), (negative,)), weights=weights)


def of_image(vector: Vector, name: str, which: str) -> Tensor:
    """Return the rows of a tensor that belong to image tokens, without those that close the image."""
    config = config_of(vector.facts, which)
    return vector[f"run_{which}/{name}"][: config.lines * config.line]


def stored(vector: Vector, name: str, branch: int) -> Tensor:
    """Return entries of the prompt and of all fed tokens but those after the image."""
    which = name.partition("/")[0].removeprefix("run_")
    config, prompt = config_of(vector.facts, which), vector[f"run_{which}/{('prompt', 'negative')[branch]}_ids"]
    return vector[name][:, : len(prompt) + config.lines * config.line - 1]


def guided(subject: Generator, vector: Vector, which: str) -> float:
    scores, actual = of_image(vector, "scores", which), subject.run(which).guided[0]
    allowed = scores.isfinite()
    return max(apart(actual.log_softmax(-1)[allowed], scores.log_softmax(-1)[allowed]), float((actual[~allowed] > -1e8).any()))


def kept(subject: Generator, vector: Vector, which: str) -> float:
    filtered = filter_logits(subject.run(which).guided[0], Sampling(top_k=vector.facts["top_k"]))
    return differing(filtered > -1e8, of_image(vector, "kept", which))


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
def decoder(vector: Vector) -> Emu3VQ:
    c = vector.facts["config"]
    config = Emu3VQConfig(c["base_channels"], tuple(c["channel_multiplier"]), c["num_res_blocks"], c["embed_dim"], c["codebook_size"],
                          tuple(c["attn_resolutions"]), c["temporal_downsample_factor"])
    return filled(Emu3VQ(config), {emu3.official_tokenizer(name): tensor for name, tensor in vector.weights().items()})


def image_of(model: Emu3VQ, vector: Vector, which: str) -> Tensor:
    """Decode the codes of a run as image tokens with ends of lines."""
    codes = vector[f"run_{which}/codes"]
    ids = ImageIds(7, model.config.codebook_size, 3)
    config = Emu3Config(emu3.GEN.decoder, *codes.shape, ids)
    tokens = torch.cat((codes + ids.first, torch.full((len(codes), 1), ids.line_end)), 1)
    return LinedDecoder(config, model).decode(tokens.flatten()[None])


KINDS = {
    "small": Kind(lambda vector: Generator(vector, generator, lambda vector, which: of_image(vector, "new_tokens", which),
                                           vector.facts["cfg_scale"]), (
        compare("codes_*", "run_*/new_tokens", part("tokens", forced=False), 0.0,
                needs=("run_*/prompt_ids",), by=lambda actual, expected: differing(actual, expected[:-3])),
        Check("guided_*", LOGITS, guided, ("run_*/scores",)),
        compare("conditional_*", "run_*/logits_cond", part("plain"),
                by=lambda actual, expected: apart(actual, expected[:-3])),
        compare("unconditional_*", "run_*/logits_uncond", part("plain", 1),
                by=lambda actual, expected: apart(actual, expected[:-3])),
        Check("kept_*", 0.0, kept, ("run_*/kept",)),
        *(slots(layer, ("cond_kv", "uncond_kv"), stored) for layer in (0, 2)),
    ), "the Emu3 generator of the transformers library, its line ends, both rows of guidance in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        compare("image_*", "run_*/decoded", image_of),
    ), "Emu3's image tokenizer in the transformers library, decoding"),
}
