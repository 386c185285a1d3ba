"""Janus-Pro, whose authors ran prompts one by one: the generator (kind ``small``) and its image decoder (kind ``small_vq``)."""

from typing import Any

from torch import Tensor

from cachemark.models import janus
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.prompts import Prompts
from cachemark.models.vision.vq import VQ, VQConfig

from ..checks import RARE, Kind, Vector, compare, differing, differing_bytes, filled
from .prompted import Generator, Noting, decoder_of, noting, part, runs_of, slots, to_uint8


# -- the generator ----------------------------------------------------------------------------------------------------
def config_of(facts: dict[str, Any]) -> JanusConfig:
    c = facts["config"]
    height, width = c["grid"]
    assert height == width
    return JanusConfig(decoder_of(c, c["rope_theta"]), c["num_image_codes"], c["code_dim"], height)


def prompts_of(vector: Vector) -> Prompts:
    facts = [vector.facts[f"run_{which}"] for which in runs_of(vector)]
    conditional_ids = tuple(tuple(vector[f"run_{which}/prompt_ids"].tolist()) for which in runs_of(vector))
    assert [list(ids) for ids in conditional_ids] == [fact["prompt_ids"] for fact in facts]
    return Prompts(conditional_ids, tuple(janus.unconditional(ids, vector.facts["config"]["pad"]) for ids in conditional_ids))


def generator(vector: Vector, _: str) -> Noting:
    used = {name: tensor for name, tensor in vector.weights().items() if name != "language_model.lm_head.weight"}  # the head for text
    return noting(Janus, config_of(vector.facts), prompts_of(vector), weights=used)


# -- the image tokenizer's decoder --------------------------------------------------------------------------------------
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
    "small": Kind(lambda vector: Generator(vector, generator, lambda vector, which: vector[f"run_{which}/codes"],
                                           vector.facts["config"]["cfg_weight"], together=True), (
        compare("codes_*", "run_*/codes", part("tokens", forced=False), 0.0, needs=("run_*/prompt_ids",), by=differing),
        compare("guided_*", "run_*/logits_cfg", part("guided")),
        compare("conditional_*", "run_*/logits_cond", part("plain")),
        compare("unconditional_*", "run_*/logits_uncond", part("plain", 1)),
        compare("hidden_*", "run_*/last_hidden_cond", part("hidden")),
        *(slots(layer, ("final_kv", "final_kv"), lambda vector, name, branch: vector[name][branch]) for layer in (0, 2)),
    ), "the Janus-Pro generator, two prompts of different length in one batch, and its slots", ("full",)),
    "small_vq": Kind(decoder, (
        compare("image_*", "run_*/decoded", image_of),
        compare("image_bytes_*", "run_*/pixels_u8", lambda *arguments: to_uint8(image_of(*arguments)), RARE, by=differing_bytes),
    ), "Janus-Pro's image tokenizer, decoding"),
}
