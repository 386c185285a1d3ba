"""A model that generates in milliseconds, methods that behave badly, and plans over them: plug-in files as a user writes them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from cachemark.models.llamagen import LlamaGen, LlamaGenConfig

CONFIG = LlamaGenConfig(layers=2, heads=2, dim=16, vocab=16, classes=10, grid=4)
TOKENS = CONFIG.grid**2
REPEATS, WARMUP = 3, 1

MODEL = '''
from dataclasses import dataclass
from functools import partial

import torch

from cachemark import registry
from cachemark.methods.window import Window
from cachemark.models import checkpoints
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.protocol import Entry, Loaded
from cachemark.spec import Sampling

CONFIG = LlamaGenConfig(layers=2, heads=2, dim=16, vocab=16, classes=10, grid=4)


def picture(tokens):
    """Each token is a grey square of 4 by 4 pixels."""
    grey = (tokens.float() / 7.5 - 1).view(-1, 1, 4, 4)
    return grey.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)


def identity(request):
    return checkpoints.sha256(request.weights) if request.weights else f"random:{request.seed}"


def load(request):
    if request.weights:
        model = checkpoints.load(partial(LlamaGen, CONFIG), request.weights, dtype=request.dtype)
    else:
        model = LlamaGen(CONFIG).initialise(request.seed).eval().requires_grad_(False)
    return Loaded(model, picture, identity(request), list(model.parameters()))


def shape(sampling, batch):
    with torch.device("meta"):
        return LlamaGen(CONFIG).layout(range(batch), sampling)


paper = Sampling(cfg_scale=1.5)
entry = Entry("dot", "llamagen", "next-token", (4, 4), 10, shape, load, identity, {"paper": paper}, summary="a model of 16 tokens")
entry.__dict__["__module__"] = __name__  # the registry asks whose it is
registry.models.add("dot")(entry)


@registry.methods.add("calm")
@dataclass
class Calm(Window):
    """A window under another name."""

    name = "calm"
    source = "the tests"
'''


def weights(path: Path, seed: int = 0, value: float | None = None) -> Path:
    """A checkpoint of the model ``dot``, its numbers large enough that tokens depend on the cache; or all of one ``value``."""
    model = LlamaGen(CONFIG).initialise(seed)
    for parameter in model.parameters():
        if value is not None:
            parameter.data.fill_(value)
        elif parameter.dim() > 1:
            parameter.data.mul_(10)
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)
    return path
