"""A package of one's own, begun: a working method, model or metric, its test, and a pyproject that names it to cachemark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ..core.errors import BadPlugin
from ..core.units import FAMILIES, METRICS
from ..core.version import __version__
from ..methods.registry import METHODS
from ..models.registry import MODELS

Thing = Literal["method", "model", "metric"]
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
METHOD = '''"""A cache method: which entries go once the budget is full."""

from __future__ import annotations

from dataclasses import dataclass

import cachemark as cm
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.methods.base.evicting import Evicting, lowest


@cm.method("{name}")
@dataclass
class {title}(Evicting):
    """Keeps the B visual entries whose keys have the smallest norm. Put your own rule into ``evict``."""

    source = "name the paper and the section here"
    evict_after = "token"  # evict is called after each token
    slack = 1  # the entry just written may stand above B until then

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual <= self.B:
            return
        visual = slots.table()  # the number of each live entry among visual tokens; -1 is the condition's
        score = -slots.keys().float().norm(dim=-1)
        slots.evict(lowest(score.masked_fill(visual < 0, float("inf")), visual, 1))
'''
MODEL = '''"""A next-token model: a small LlamaGen that draws 4x4 tokens, each a grey square. Put your own network into its place."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from cachemark.cache.layout import Layout
from cachemark.core.spec import Sampling
from cachemark.models import checkpoints, llamagen
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS

CONFIG = llamagen.LlamaGenConfig(layers=2, heads=2, dim=32, vocab=16, classes=10, grid=4)


def decode(tokens: Tensor) -> Tensor:
    """Tokens (B, N) to images (B, 3, H, W) in [-1, 1]."""
    grey = (tokens.float() / 7.5 - 1).view(-1, 1, 4, 4)
    return grey.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)


def identity(request: Request) -> str:
    """The name of the weights: figures on other ones are other figures."""
    return checkpoints.sha256(request.weights) if request.weights else f"random:{{request.seed}}"


def load(request: Request) -> Loaded:
    """The model with the weights of a file, or with random ones."""
    build = partial(llamagen.LlamaGen, CONFIG)
    if request.weights:
        model = checkpoints.load(build, request.weights, dtype=request.dtype)
    else:
        model = build().initialise(request.seed).eval().requires_grad_(False)
    return Loaded(model, decode, identity(request), [*model.parameters(), model.rope])


def shape(sampling: Sampling, batch: int) -> Layout:
    """The shape of a generation, without loading anything."""
    return llamagen.layout(CONFIG, range(batch), sampling, torch.float32, "cpu")


MODELS.add("{name}")(ModelEntry(
    "{name}", "llamagen", "next-token", (4, 4), 10, shape, load, identity,
    presets={{"paper": Sampling(cfg_scale=1.5)}}, summary="Say in a line what it draws",
))
'''
METRIC = '''"""A metric of images: one figure of each."""

from __future__ import annotations

from torch import Tensor

from cachemark.core import registry
from cachemark.metrics.base import ImageMetric, Shown


@registry.metrics.add("{name}")
class {title}(ImageMetric):
    """Standard deviation of the grey values of an image. Say here what yours means: reports show this paragraph."""

    name = "{name}"
    title = "{title}"
    unit = ""  # none
    better = "higher"
    kind = "quality"  # of an image by itself; "fidelity" is nearness to shown.reference
    within = (0, 0.5)  # the range of one image's figure
    deterministic = False  # True where the same images give the same bits

    def measure(self, shown: Shown) -> Tensor:
        grey = (shown.images.clamp(-1, 1) + 1).mean(1) / 2
        return grey.flatten(1).std(1, correction=0).clamp(*self.within)
'''
TEST = '''"""The {thing} passes the checks that cachemark's own are held to."""

from pathlib import Path

from cachemark.workflows.prove import prove_{thing}

FILE = Path(__file__).parents[1] / "{package}" / "{thing}.py"


def test_the_{thing}_passes_the_kit() -> None:
    (proof,) = prove_{thing}(FILE)
    assert proof.complete, [(check.name, finding) for check in proof.checks for finding in check.findings]
'''
PROJECT = '''[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "A {thing} for cachemark"
requires-python = ">=3.11"
dependencies = ["cachemark>={version}"]

[project.optional-dependencies]
test = ["pytest>=8.2"]

[project.entry-points."cachemark.{thing}s"]
{name} = "{package}.{thing}"

[tool.setuptools]
packages = ["{package}"]
'''
BODIES: dict[Thing, str] = {"method": METHOD, "model": MODEL, "metric": METRIC}


def start(thing: Thing, name: str, folder: str | Path = ".", *, source: str = "") -> list[Path]:
    """Write a package of one's own into the new folder ``cachemark-NAME`` of a folder. Returns the files. ``source`` is the text of its
    module, where it is not to be the example. BadPlugin for a name that is none or that the package has, and where the folder is there
    already."""
    require_free(thing, name)
    root, package = Path(folder) / f"cachemark-{name.replace('_', '-')}", f"cachemark_{name}"
    words = {"name": name, "thing": thing, "package": package, "distribution": root.name, "version": __version__,
             "title": "".join(part.capitalize() for part in name.split("_"))}
    files = {"pyproject.toml": PROJECT, f"{package}/__init__.py": '"""A {thing} for cachemark."""\n',
             f"{package}/{thing}.py": BODIES[thing], f"tests/test_{name}.py": TEST}
    try:
        root.mkdir()
        for place, text in files.items():
            (root / place).parent.mkdir(exist_ok=True)
            (root / place).write_text(text.format(**words), encoding="utf-8")
        if source:
            (root / package / f"{thing}.py").write_text(source, encoding="utf-8")
    except OSError as error:
        raise BadPlugin(f"{root} cannot be written: {error.strerror}.",
                        remedy="Give another name or --folder; nothing is overwritten.") from error
    return [root / place for place in files]


def require_free(thing: Thing, name: str) -> None:
    """Raise BadPlugin for what is no name of a package's thing, or one that cachemark has itself."""
    if not NAME.fullmatch(name):
        raise BadPlugin(f"{name[:60]!r} is no name for a {thing} of a package.",
                        remedy="Give at most 40 small letters, digits and underscores; the first is a letter.")
    taken: dict[Thing, Iterable[str]] = {"method": METHODS, "model": MODELS, "metric": METRICS}
    if name in taken[thing] or (thing == "metric" and name.split("_")[0] in FAMILIES):
        raise BadPlugin(f"cachemark itself has a {thing} {name!r}.", remedy="Give yours another name.")
