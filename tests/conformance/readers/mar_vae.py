"""The decoder of MAR's image tokenizer (kind ``vae_decoder``)."""

from __future__ import annotations

from cachemark.models.vision.kl import KL, KLConfig, tokens_of

from ..checks import Kind, Vector, compare, filled
from .mar import RELATIVE, far

SCALE = 0.2325  # of the authors' code


def decoder(vector: Vector) -> KL:
    c = vector.facts["decoder_config"]
    return filled(KL(KLConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"])), vector.weights())


KINDS = {
    "vae_decoder": Kind(decoder, (
        compare("image", "out/image", lambda model, vector: model.image(vector["in/z"]), RELATIVE, needs=("in/z",), by=far),
        compare("decoded", "out/image", lambda model, vector: model.decode(tokens_of(vector["in/z"]) * SCALE), RELATIVE, needs=("in/z",),
                by=lambda actual, expected: far(actual, expected.clamp(-1, 1))),
    ), "MAR's image tokenizer, decoding"),
}
