"""MAR's image tokenizer (kinds ``vae_decoder`` and ``vae_encoder``)."""

from __future__ import annotations

from cachemark.models.vision.kl import KL, KLConfig, tokens_of

from ..checks import Kind, Vector, compare, filled
from .mar import RELATIVE, far

SCALE = 0.2325  # of the authors' code


def autoencoder(vector: Vector) -> KL:
    half, absent = ("decoder", "encoder") if "in/z" in vector.tensors else ("encoder", "decoder")
    c = vector.facts[f"{half}_config"]
    config = KLConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"])
    return filled(KL(config), vector.weights(), f"{absent}.", "quant_conv." if half == "decoder" else "post_quant_conv.")


KINDS = {
    "vae_decoder": Kind(autoencoder, (
        compare("image", "out/image", lambda model, vector: model.image(vector["in/z"]), RELATIVE, needs=("in/z",), by=far),
        compare("decoded", "out/image", lambda model, vector: model.decode(tokens_of(vector["in/z"]) * SCALE), RELATIVE, needs=("in/z",),
                by=lambda actual, expected: far(actual, expected.clamp(-1, 1))),
    ), "MAR's image tokenizer, decoding"),
    "vae_encoder": Kind(autoencoder, (
        compare("moments", "out/moments", lambda model, vector: model.quant_conv(model.encoder(vector["in/image"])), RELATIVE,
                needs=("in/image",), by=far),
        compare("mean", "out/mean", lambda model, vector: model.moments(vector["in/image"])[0], RELATIVE, needs=("in/image",), by=far),
        compare("deviation", "out/std", lambda model, vector: model.moments(vector["in/image"])[1], RELATIVE, needs=("in/image",), by=far),
        compare("encoded", "out/mean", lambda model, vector: model.encode(vector["in/image"]), RELATIVE, needs=("in/image",),
                by=lambda actual, expected: far(actual, tokens_of(expected) * SCALE)),
    ), "MAR's image tokenizer, encoding"),
}
