"""Plug-in files as a user writes them: a model that generates in milliseconds, misbehaving methods, and plans for them."""

from pathlib import Path

from safetensors.torch import save_file

from cachemark.models.llamagen import LlamaGen, LlamaGenConfig

CONFIG = LlamaGenConfig(layers=2, heads=2, dim=16, vocab=16, classes=10, grid=4)
TOKENS = CONFIG.grid**2
WARMUP, REPEATS, SAMPLES, BATCH = 1, 3, 4, 2

MODEL = '''
import os
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

import cachemark as cm
from cachemark.models.registry import MODELS
from cachemark.core import registry
from cachemark.methods.window import Window
from cachemark.models import checkpoints, llamagen
from cachemark.models.protocol import Loaded, ModelEntry
from cachemark.core.spec import Sampling

CONFIG = llamagen.LlamaGenConfig(layers=2, heads=2, dim=16, vocab=16, classes=10, grid=4)


def picture(tokens):
    """Each token is a grey square of 4 by 4 pixels."""
    grey = (tokens.float() / 7.5 - 1).view(-1, 1, 4, 4)
    return grey.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)


def set_up():
    """For files that add to this one: what they change of the package, for all cases of this model alike."""


def identity(request):
    set_up()
    return checkpoints.sha256(request.weights) if request.weights else f"random:{request.seed}"


def load(request):
    build = partial(llamagen.LlamaGen, CONFIG)
    if request.weights:
        model = checkpoints.load(build, request.weights, dtype=request.dtype)
    else:
        model = build().initialise(request.seed).eval().requires_grad_(False)
    return Loaded(model, picture, identity(request), [*model.parameters(), model.rope])


def shape(sampling, batch):
    return CONFIG.layout(range(batch), sampling)


paper = Sampling(cfg_scale=1.5)
MODELS.add("dot")(
    ModelEntry("dot", "llamagen", "next-token", (4, 4), 10, shape, load, identity, {"paper": paper}, summary="a model of 16 tokens"))


@cm.method("calm")
@dataclass
class Calm(Window):
    """A window under another name."""

    name: ClassVar[str] = "calm"
    source: ClassVar[str] = "the tests"
    footnotes: ClassVar[tuple[str, ...]] = (str(os.getpid()),)
'''

EYES = '''
import torch
from torch import nn

from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.presets import Preset
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages


class Eyes(nn.Module):
    """Bytes (B, 3, 16, 16) to six numbers and ten logits."""

    def forward(self, images):
        grey = images[:, 0].float() / 127.5 - 1
        features = torch.cat((grey[:, ::8, ::8].flatten(1), grey.mean((1, 2))[:, None], grey.std((1, 2))[:, None]), 1)
        return features, features @ torch.linspace(-1, 1, 60).view(6, 10)


def seen():
    """The preset of these eyes, against sixty images of noise."""
    extractor = Extractor("e7e5" * 16, lambda: Eyes().eval())
    real = torch.randint(0, 256, (60, 3, 16, 16), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    options = {"kid_subset_size": 8, "kid_subsets": 4, "isc_splits": 2}
    return Preset("eyes", extractor, RealImages.of(ImageFeatures.of(real, extractor)), options=options, names_classes=True)
'''

WAITS = '''
import time


@cm.method("waits")
@dataclass
class Waits(Calm):
    """Waits as long as a certain file is there."""

    name: ClassVar[str] = "waits"

    def begin(self, layout, sites, memory):
        with open(__file__ + ".opened", "w") as file:
            file.write(str(os.getpid()))
        os.replace(__file__ + ".opened", __file__ + ".reached")  # whoever sees the file may read it
        while os.path.exists(__file__ + ".hold"):
            time.sleep(0.02)
        super().begin(layout, sites, memory)
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


def plan_text(methods: str, *, weights: Path | None = None, batch: int = BATCH, samples: int = SAMPLES, timeout: float = 60.0,
              cells: str = "", top: str = "") -> str:  # fmt: skip
    """A plan on the model ``dot`` at half the cache. ``methods`` is TOML without the brackets; ``cells`` ends its only block."""
    return f"""name = "dots"
timeout = {timeout:.1f}
{top}
[timing]
warmup = {WARMUP}
repeats = {REPEATS}

[fidelity]
seeds = "s64"
samples = {samples}

[[cells]]
model = "dot"
methods = [{methods}]
budgets = ["1/2"]
batch = {batch}
weights = "{weights or ''}"
{cells}
"""


def short_plan(block: str, *, top: str = "", samples: int = 2) -> str:
    """A plan of the fewest repeats. ``block``: its first block of cells in TOML, less the batch of 2, and any that follow."""
    return f"""name = "short"
{top}
[timing]
warmup = 1
repeats = 3

[fidelity]
samples = {samples}

[[cells]]
batch = 2
{block}
"""


METRIC = '''
import os
import socket
import threading

import torch

import cachemark as cm
from cachemark.models.registry import MODELS
from cachemark.plugins import loading as plugins
from cachemark.core import registry
from cachemark.metrics.base import ImageMetric


@registry.metrics.add("given")
class Given(ImageMetric):
    """Mean of the grey values of an image."""

    name = "given"
    unit = ""
    better = "higher"
    kind = "quality"
    within = (0, 1)
    deterministic = True

    def measure(self, batch):
        grey = batch.images.clamp(-1, 1).add(1).div(2).mean(1)
        pass
        return grey.flatten(1).mean(1)
'''
