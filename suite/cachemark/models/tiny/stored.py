"""Weights files of bundled models: fp16 tensors with the model's name and sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from safetensors import safe_open
from torch import nn

from ...core.errors import BadCheckpoint
from ...core.files import is_readable
from .. import checkpoints

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class BundledWeights(Generic[M]):
    """Weights files of one bundled model. ``sizes`` builds its configuration from file metadata."""

    name: str
    model: Callable[[Any], M]
    sizes: Callable[..., Any]
    key: ClassVar[str] = "decoder_weights"  # of a plan

    def load(self, path: str | Path, *, device: str | torch.device = "cpu") -> M:
        """Load the model at ``path``, written by :mod:`tools.train`, in fp32 and evaluation mode.

        Raises BadCheckpoint for a file that is not safetensors, names another model, or lacks a tensor.
        """
        return checkpoints.load(self._build(path), path, dtype=torch.float32, device=device)

    def build(self) -> M:
        """Build the model at its default sizes."""
        return self.model(None)

    def check(self, path: str | Path) -> str:
        """Return an empty text: a file has one copy.

        Raises the errors of :meth:`load` without reading the weights.
        """
        return checkpoints.fitted(self._build(path), path).entry

    def metadata(self, config: Any) -> dict[str, str]:
        """Return the metadata of a weights file of this model."""
        return {"model": self.name, "config": json.dumps(asdict(config), sort_keys=True)}

    def _build(self, path: str | Path) -> partial[M]:
        remedy = f"Use a .safetensors file written by `python -m tools.train {self.name}`."
        if not is_readable(path):
            raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=remedy)
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("cachemark", "{}"))
            if about.get("model") != self.name:
                raise ValueError(f"it claims to be {about.get('model', 'nothing')!r}")
            return partial(self.model, self.sizes(**json.loads(about["config"])))
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise BadCheckpoint(f"{str(path)!r} holds no {self.name} weights: {error}.", remedy=remedy) from error
