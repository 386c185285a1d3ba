"""GLM-Image's autoregressive stage (kind ``small``), by the transformers library, which ran prompts one by one."""

from typing import Any

from torch import Tensor

from cachemark.models.glm_image import GlmImage, GlmImageConfig
from cachemark.models.prompts import Prompts

from ..checks import LOGITS, Check, Kind, Vector, compare, differing
from .prompted import Generator, Noting, decoder_of, noting, part, runs_of, slots


def config_of(facts: dict[str, Any]) -> GlmImageConfig:
    c, rope = facts["config"], facts["rope"]
    decoder = decoder_of(c, rope["rope_theta"], qkv_bias=True)
    first, second, third = rope["mrope_section"]
    assert first + second + third == decoder.head_dim * rope["partial_rotary_factor"] / 2
    return GlmImageConfig(decoder, facts["codes"], c["vision_vocab_size"], facts["grid"], facts["preview"], (first, second, third))


def generator(vector: Vector, _: str = "") -> Noting:
    prompts = Prompts(tuple(tuple(vector[f"run_{which}/prompt_ids"].tolist()) for which in runs_of(vector)))
    return noting(GlmImage, config_of(vector.facts), prompts, weights=vector.weights())


def logits_of(subject: Generator, vector: Vector, which: str) -> Tensor:
    """Return the logits of every output of the head, of which the model keeps those of codes."""
    return part("hidden")(subject, vector, which) @ vector["weights/lm_head.weight"].float().T


def kept(subject: Generator, vector: Vector, which: str) -> float:
    """Compare the logits that are sampled from with those of codes."""
    actual, expected = part("guided")(subject, vector, which), vector[f"run_{which}/logits_cond"]
    codes = config_of(vector.facts).codes
    return float("inf") if actual.size(-1) != codes else float((actual - expected[:, :codes]).abs().max())


KINDS = {
    "small": Kind(lambda vector: Generator(vector, generator, lambda vector, which: vector[f"run_{which}/new_tokens"], 1.0, True), (
        compare("codes_*", "run_*/new_tokens", part("tokens", forced=False), 0.0, needs=("run_*/prompt_ids",), by=differing),
        compare("logits_*", "run_*/logits_cond", logits_of),
        Check("sampled_*", LOGITS, kept, ("run_*/logits_cond",)),
        *(slots(layer, ("cond_kv",), lambda vector, name, _: vector[name]) for layer in (0, 2)),
    ), "GLM-Image's autoregressive stage in the transformers library, preview and image, two prompts in one batch, and its slots",
        ("full",)),
}
