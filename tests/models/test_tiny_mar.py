"""The bundled masked model as plans name it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadCheckpoint
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.catalogue.masked_models import TINY_MAR, TINY_NAME
from cachemark.models.diffusion import DiffusionHead
from cachemark.models.mar import MAR
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.tiny.tiny_kl import TinyKL, TinyKLConfig, metadata


def coder(folder: Path, config: TinyKLConfig) -> str:
    path = folder / f"kl-{config.channels}.safetensors"
    state = {name: tensor.detach().half() for name, tensor in TinyKL(config).state_dict().items()}
    save_file(state, str(path), metadata={"cachemark": json.dumps(metadata(config))})
    return str(path)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """A request with random weights in files."""
    folder = tmp_path_factory.mktemp("mar")
    save_file(MAR(TINY_MAR).initialise(0).half().state_dict(), str(folder / "mar.safetensors"))
    return Request(weights=str(folder / "mar.safetensors"), decoder_weights=coder(folder, TinyKLConfig(width=16, blocks=1)))


@pytest.mark.parametrize(("steps", "first"), [(0, 960), (25, 960), (10, 900), (2, 500)])
def test_the_head_never_begins_where_nothing_is_left_of_the_token(
    request_: Request, steps: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling, steps_of_head = Sampling(steps=1, diffusion_steps=steps), []
    monkeypatch.setattr(DiffusionHead, "sample", lambda self, z, noise, *_: steps_of_head.append(_[1].process.timesteps) or noise[0])
    MODELS.get(TINY_NAME).load(request_).generator.generate(torch.tensor([0]), [1], Full(), sampling, Memory())
    assert steps_of_head[0][-1] == first
    assert len(steps_of_head[0]) == MODELS.get(TINY_NAME).shape(sampling, 1).diffusion == (steps or 25)


def test_a_tokenizer_with_other_channels_is_refused(request_: Request, tmp_path: Path) -> None:
    other = Request(weights=request_.weights, decoder_weights=coder(tmp_path, TinyKLConfig(channels=4, width=16, blocks=1)))
    with pytest.raises(BadCheckpoint, match="has 4 channels; this model needs 8"):
        MODELS.get(TINY_NAME).load(other)
