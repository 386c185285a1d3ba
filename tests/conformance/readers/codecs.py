"""Codecs of vectors, without a model (kind ``turboquant``)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cachemark.cache.rotated import RotationConstants, codebook, direction_codes, vectors

from ..checks import Check, Kind, Vector, apart, differing, worst

INPUTS = ("*/*/x", "*/*/rotation")


def constants(vector: Vector, width: str, rotation: str, bits: str) -> RotationConstants:
    """Return our codebook with the rotation of the file."""
    return RotationConstants.of(vector[f"{width}/{rotation}/rotation"].double(), torch.from_numpy(codebook(int(width), int(bits))))


def stored(vector: Vector, last: str) -> Iterator[tuple[list[str], Tensor]]:
    """Yield tensors ``<width>/<rotation>/<bits>/last``: the first three parts of their names, and those of vectors that are not zero."""
    for name, _ in vector.matching(f"*/*/*/{last}"):
        width, rotation, bits, _ = name.split("/")
        yield [width, rotation, bits], vector[name][not_zero(vector, width, rotation)]


def not_zero(vector: Vector, width: str, rotation: str) -> Tensor:
    return vector[f"{width}/{rotation}/x"].abs().amax(-1) > 0  # a zero vector lies on a boundary of every coordinate


def codebooks(_: None, vector: Vector) -> float:
    names = [name for name, _ in vector.matching("*/codebook/*")]
    return worst(apart(torch.from_numpy(codebook(*map(int, name.split("/codebook/")))), vector[name]) for name in names)


def codes(_: None, vector: Vector) -> float:
    def own(width: str, rotation: str, bits: str) -> Tensor:
        x = vector[f"{width}/{rotation}/x"][not_zero(vector, width, rotation)]
        return direction_codes(x, constants(vector, width, rotation, bits))[0]

    return worst(differing(own(*where), expected) for where, expected in stored(vector, "codes"))


def lengths(_: None, vector: Vector) -> float:
    """Return the largest relative difference; a zero vector has length 0."""
    def far(width: str, rotation: str) -> float:
        own = direction_codes(vector[f"{width}/{rotation}/x"], constants(vector, width, rotation, "2"))[1][:, 0]
        expected = vector[f"{width}/{rotation}/norm"].double()
        return float(((own - expected).abs() / expected.clamp_min(1e-30)).max())

    return worst(far(*name.split("/")[:2]) for name, _ in vector.matching("*/*/norm"))


def decoded(_: None, vector: Vector) -> float:
    """Return the largest difference of vectors decoded from the file's codes and fp16 lengths, relative to their lengths."""
    def far(width: str, rotation: str, bits: str, expected: Tensor) -> float:
        chosen = not_zero(vector, width, rotation)
        length = vector[f"{width}/{rotation}/norm"][chosen, None].half()
        own = vectors(vector[f"{width}/{rotation}/{bits}/codes"][chosen], length, constants(vector, width, rotation, bits))
        return float(((own - expected).abs() / length.float()).max())

    return worst(far(*where, expected) for where, expected in stored(vector, "renormed_fp16_norm"))


KINDS = {
    "turboquant": Kind(lambda _: None, (
        Check("codebooks", 1e-12, codebooks, ("*/codebook/*",)),
        Check("codes", 0.0, codes, ("*/*/*/codes", *INPUTS)),
        Check("lengths", 1e-6, lengths, ("*/*/norm", *INPUTS)),
        Check("decoded", 1e-5, decoded, ("*/*/*/renormed_fp16_norm", "*/*/*/codes", "*/*/norm", *INPUTS)),
    ), "TurboQuant's codebooks, and codes, lengths and decoded vectors under given rotations, by a second implementation"),
}
