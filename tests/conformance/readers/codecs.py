"""Codecs of vectors, without a model (kind ``turboquant``)."""

import torch
from torch import Tensor

from cachemark.cache.rotated import RotationConstants, codebook, direction_codes, vectors

from ..checks import Kind, Vector, compare, differing

INPUTS = ("*/*/x", "*/*/rotation")


def constants(vector: Vector, width: str, rotation: str, bits: str) -> RotationConstants:
    """Return our codebook with the rotation of the file."""
    return RotationConstants.of(vector[f"{width}/{rotation}/rotation"].double(), torch.from_numpy(codebook(int(width), int(bits))))


def where_zero(vector: Vector, width: str, rotation: str, expected: Tensor, own: Tensor) -> Tensor:
    """Return ours, and what is expected for zero vectors, which lie on a boundary of every coordinate."""
    zero = vector[f"{width}/{rotation}/x"].abs().amax(-1, keepdim=True) == 0
    return torch.where(zero, expected, own)


def codes(_: None, vector: Vector, width: str, rotation: str, bits: str) -> Tensor:
    own = direction_codes(vector[f"{width}/{rotation}/x"], constants(vector, width, rotation, bits))[0]
    return where_zero(vector, width, rotation, vector[f"{width}/{rotation}/{bits}/codes"], own)


def lengths(_: None, vector: Vector, width: str, rotation: str) -> Tensor:
    return direction_codes(vector[f"{width}/{rotation}/x"], constants(vector, width, rotation, "2"))[1][:, 0]


def decoded(_: None, vector: Vector, width: str, rotation: str, bits: str) -> Tensor:
    """Return vectors decoded from the file's codes and fp16 lengths."""
    at = f"{width}/{rotation}/{bits}"
    own = vectors(vector[f"{at}/codes"], vector[f"{width}/{rotation}/norm"][:, None].half(), constants(vector, width, rotation, bits))
    return where_zero(vector, width, rotation, vector[f"{at}/renormed_fp16_norm"], own)


def far(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the length of the expected vector, or to the expected number."""
    length = expected.double().norm(dim=-1, keepdim=True) if expected.dim() > 1 else expected.double().abs()
    return float(((actual.double() - expected.double()).abs() / length.clamp_min(1e-30)).max())


KINDS = {
    "turboquant": Kind(lambda _: None, (
        compare("codebooks", "*/codebook/*", lambda _, vector, width, bits: torch.from_numpy(codebook(int(width), int(bits))), 1e-12),
        compare("codes", "*/*/*/codes", codes, 0.0, needs=INPUTS, by=differing),
        compare("lengths", "*/*/norm", lengths, 1e-6, needs=INPUTS, by=far),
        compare("decoded", "*/*/*/renormed_fp16_norm", decoded, 1e-5, needs=("*/*/*/codes", "*/*/norm", *INPUTS), by=far),
    ), "TurboQuant's codebooks, and codes, lengths and decoded vectors under given rotations, by a second implementation"),
}
