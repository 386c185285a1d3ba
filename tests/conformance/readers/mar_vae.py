"""MAR's image tokenizer (kinds ``vae_decoder`` and ``vae_encoder``)."""

from __future__ import annotations

from cachemark.models.vision.kl import KL, KLConfig, tokens_of

from ..checks import Check, Kind, Vector
from .mar import RELATIVE, far


def autoencoder(vector: Vector) -> KL:
    half = "decoder" if "in/z" in vector.tensors else "encoder"
    c = vector.facts[f"{half}_config"]
    model = KL(KLConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"]))
    missing, unexpected = model.load_state_dict(vector.weights(), strict=False)
    own = ("decoder.", "post_quant_conv.") if half == "decoder" else ("encoder.", "quant_conv.")
    assert not unexpected
    assert not [name for name in missing if name.startswith(own)]
    return model.eval().requires_grad_(False)


def image(model: KL, vector: Vector) -> float:
    return far(model.image(vector["in/z"]), vector["out/image"])


def decoded(model: KL, vector: Vector) -> float:
    """Compare clamped images of scaled tokens."""
    tokens = tokens_of(vector["in/z"]) * 0.2325
    return far(model.decode(tokens), vector["out/image"].clamp(-1, 1))


def moments(model: KL, vector: Vector) -> float:
    return far(model.quant_conv(model.encoder(vector["in/image"])), vector["out/moments"])


def mean(model: KL, vector: Vector) -> float:
    return far(model.moments(vector["in/image"])[0], vector["out/mean"])


def deviation(model: KL, vector: Vector) -> float:
    return far(model.moments(vector["in/image"])[1], vector["out/std"])


def encoded_tokens(model: KL, vector: Vector) -> float:
    return far(model.encode(vector["in/image"]), tokens_of(vector["out/mean"]) * 0.2325)


KINDS = {
    "vae_decoder": Kind(autoencoder, (
        Check("image", RELATIVE, image, ("in/z", "out/image")),
        Check("decoded", RELATIVE, decoded, ("in/z", "out/image")),
    ), "MAR's image tokenizer, decoding"),
    "vae_encoder": Kind(autoencoder, (
        Check("moments", RELATIVE, moments, ("in/image", "out/moments")),
        Check("mean", RELATIVE, mean, ("in/image", "out/mean")),
        Check("deviation", RELATIVE, deviation, ("in/image", "out/std")),
        Check("encoded", RELATIVE, encoded_tokens, ("in/image", "out/mean")),
    ), "MAR's image tokenizer, encoding"),
}
