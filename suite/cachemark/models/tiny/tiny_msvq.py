"""The multi-scale twin of :mod:`~cachemark.models.tiny.tiny_vq`: 64×64 pictures to token maps of 1×1 … 16×16 and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import checkpoints
from ..vision.msvq import MultiScaleQuantizer
from . import tiny_vq as vq

NAME = "tiny-msvq"


@dataclass(frozen=True)
class TinyMSVQConfig(vq.TinyVQConfig):
    """Sizes of a :class:`TinyMSVQ`. ``sides``: sides of the token maps, coarse to fine; the last is the encoder's grid."""

    channels: int = 16
    sides: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)


class TinyMSVQ(nn.Module):
    """Encoder, multi-scale quantiser and decoder. Images are RGB in [−1, 1]; tokens run scale by scale, row by row."""

    def __init__(self, config: TinyMSVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyMSVQConfig()
        self.encoder, self.decoder = vq.encoder(c), vq.decoder(c)
        self.quantizer = MultiScaleQuantizer(c.sides, c.codes, c.channels)
        self.quantizer.embedding.weight.requires_grad_(False)

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) of side ``patch`` times the last side to tokens (B, N) int64."""
        return self.quantizer.quantise(self.encoder(images))

    def decode(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N) to images (B, 3, H, W), not clamped."""
        return self.decoder(self.quantizer.restore(tokens))

    @property
    def language(self) -> str:
        """Identity of the tokens' meaning, see :func:`~cachemark.models.tiny.tiny_vq.language_of`."""
        return vq.language_of(self)


def load(path: str | Path, *, device: str | torch.device = "cpu") -> TinyMSVQ:
    """Read a :class:`TinyMSVQ` written by :mod:`cachemark.tools.train`: stored in fp16, returned in fp32, in evaluation mode. Raises
    :class:`~cachemark.core.errors.BadCheckpoint` for any other file."""
    config = _config(path)
    return checkpoints.load(lambda: TinyMSVQ(config), path, dtype=torch.float32, device=device)


def check(path: str | Path) -> None:
    """Raise what :func:`load` would raise for this file, without reading its weights."""
    config = _config(path)
    checkpoints.check(lambda: TinyMSVQ(config), path)


def _config(path: str | Path) -> TinyMSVQConfig:
    return vq.stated(path, NAME, lambda sides, **others: TinyMSVQConfig(sides=tuple(sides), **others))


def metadata(config: TinyMSVQConfig) -> dict[str, str]:
    """The metadata that a weights file of this model must have."""
    return {"model": NAME, "config": json.dumps(asdict(config), sort_keys=True)}
