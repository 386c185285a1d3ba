"""The interface between the harness and a model of any family."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ..cache.arena import Memory
from ..cache.layout import Grid, Layout
from ..contract.method import Method
from ..core.errors import BadCheckpoint, BadPlan
from ..core.spec import Sampling, digest
from ..roofline.passes import ParameterCounts
from . import checkpoints, hub
from .checkpoints import EXTRAS
from .entries import WRAPPERS
from .prompt_lists import prompt_list

NEAR = 3  # grids that an error names


class Generator(Protocol):
    """A model that generates tokens."""

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Return the layout of a generation. Only prompted models are given ``labels``."""

    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[Any, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N), or (batch, N, C) fp32 for masked models, for ``labels`` (batch,).

        ``see(first, logits)`` receives the guided fp32 logits (batch, count, vocab) of a pass, (batch, count, bits, 2) for bitwise
        tokens; for masked models ``see(places, tokens)`` receives raster positions (batch, count) and sampled tokens (batch, count, C),
        even if other tokens are ``forced``. ``mark(index)`` is called once ``index`` + 1 tokens exist.
        """


@dataclass(frozen=True)
class Loaded:
    """A model ready to run: generator, image decoder, and the identity of its weights.

    ``decode``: tokens (batch, N) to images (batch, 3, H, W) in [−1, 1]. ``weights``: transformer and decoder, separated by a slash, each
    ``random:<seed>`` or a SHA-256. ``parameters``: all tensors that exist before a generation. ``prompted``: layouts need labels.
    ``token_dtype``: of stored token indices.
    """

    generator: Generator
    decode: Callable[[Tensor], Tensor]
    weights: str
    parameters: Sequence[Tensor] = ()
    prompted: bool = False
    token_dtype: torch.dtype = torch.int32

    @property
    def random(self) -> bool:
        """True if the transformer's weights are random, so that images are noise."""
        return self.weights.startswith("random:")

    @property
    def pictures(self) -> bool:
        """True if the image decoder is trained."""
        return not self.weights.rpartition("/")[2].startswith("random:")


@dataclass(frozen=True)
class Request:
    """Options of loading a model. Empty paths select bundled or random weights.

    ``grid``: rows and columns of the tokens of an image; empty for the model's own. ``engine``: ``reference`` repeats the redundant work of
    the published code in every pass. ``extractor``, ``reference``: paths of the feature network and its real statistics. ``prompts``: name
    or path of a list (:mod:`cachemark.models.prompt_lists`). ``metrics``: paths as (metric, option, path).
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    weights: str = ""
    decoder_weights: str = ""
    seed: int = 0
    engine: str = "eager"
    extractor: str = ""
    reference: str = ""
    prompts: str = ""
    metrics: tuple[tuple[str, str, str], ...] = ()
    grid: Grid | tuple[()] = ()

    @classmethod
    def of(cls, model: str, weights: str = "", decoder_weights: str = "", **options: Any) -> Self:
        """Return the request for a model's weights by path, or by name in the cache of huggingface_hub.

        Raises the errors of :func:`cachemark.models.hub.located`.
        """
        weights, decoder_weights = hub.located(model, weights, decoder_weights)
        return cls(weights=weights, decoder_weights=decoder_weights, **options)


class CheckpointNote(UserWarning):
    """Says which of several copies of the weights in a file or folder is used."""


@dataclass(frozen=True)
class PublishedFile:
    """A file of the authors that a plan names under ``key`` (``weights`` or ``decoder_weights``).

    ``build`` makes the module that it fills, ``wrappers`` are patterns of entries in order of preference, names matching ``ignored`` may be
    present, and ``rename`` maps names of the file to the module's. ``pixels``: side of the training images, if other sizes have the same
    shapes: LlamaGen at 256 and 384 pixels, Lumina-mGPT at 768 and 1024. The wrong file would load and make bad images.
    """

    key: str
    name: str
    origin: str
    build: Callable[[], nn.Module]
    wrappers: Sequence[str] = WRAPPERS
    ignored: Sequence[str] = EXTRAS
    rename: Callable[[str], str] = str
    pixels: int = 0

    def check(self, path: str | Path) -> str:
        """Return the entry that is used if the file holds several copies of the weights, else an empty text.

        Warns of the choice. Raises BadCheckpoint for a file that does not fit, without reading its weights.
        """
        fitted = checkpoints.fitted(self.build, path, ignore=self.ignored, wrappers=self.wrappers, rename=self.rename)
        for note in fitted.notes:
            warnings.warn(note, CheckpointNote, stacklevel=1)  # one place, so that each note is printed once
        pixels, source = checkpoints.trained_pixels(path) if self.pixels else (0, "")
        if pixels and pixels != self.pixels:
            raise BadCheckpoint(f"{str(path)!r} is for images of {pixels} pixels by {source}; this model makes {self.pixels}, and their "
                                f"shapes are the same.", remedy=f"Use {self.name}; if only the name is wrong, rename the file.")
        return fitted.entry

    def rows(self, path: str | Path, tensor: str) -> int:
        """Return the rows of a tensor in the file, 0 if it is not there.

        Raises BadCheckpoint for a file that cannot be read.
        """
        chosen = checkpoints.chosen(self.build, path, ignore=self.ignored, wrappers=self.wrappers, rename=self.rename)
        return chosen.tensors[tensor].size(0) if tensor in chosen.tensors else 0

    def load(self, path: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Any:
        """Load a file. Raises BadCheckpoint."""
        return checkpoints.load(self.build, path, dtype=dtype, device=device, ignore=self.ignored, wrappers=self.wrappers,
                                rename=self.rename)


@dataclass(frozen=True)
class ModelEntry:
    """A model of the catalogue: everything a plan needs without loading it.

    ``presets``: sampling settings; each model has ``paper``. ``shape(sampling, batch)``: the layout of a generation.
    ``identity(request)``: the ``weights`` of :class:`Loaded`; raises BadCheckpoint for a file that does not fit. ``quality``: metrics of
    this model's images without a reference set; ``preset``: feature network and real images for the others. ``files``: the authors' files
    of a published model. ``prompts``: texts of a text-to-image model, which are its classes. ``asking(texts)``: the entry for other
    texts. ``parameter_counts()``: cost of its products, or None. ``grids``: token grids of all aspect ratios, if there are several, and
    ``sized(grid)``: the entry for one of them. ``of_weights(path)``: the entry with as many classes as its weights have. ``authors_code``:
    of a composite model, whether the authors of the idea have published code, as for methods.
    """

    name: str
    family: str
    paradigm: str
    grid: tuple[int, int]
    classes: int
    shape: Callable[[Sampling, int], Layout]
    load: Callable[[Request], Loaded]
    identity: Callable[[Request], str]
    presets: Mapping[str, Sampling] = field(default_factory=dict)
    quality: tuple[str, ...] = ()
    preset: str = "adm"
    summary: str = ""
    files: tuple[PublishedFile, ...] = ()
    parameter_counts: Callable[[], ParameterCounts | None] = lambda: None
    prompts: tuple[str, ...] = ()
    asking: Callable[[tuple[str, ...]], ModelEntry] | None = None
    grids: tuple[Grid, ...] = ()
    sized: Callable[[Grid], ModelEntry] | None = None
    of_weights: Callable[[str], ModelEntry] | None = None
    authors_code: str = ""

    def for_request(self, request: Request) -> ModelEntry:
        """Return the entry for the grid, the weights' classes and the prompt list of a request.

        Raises BadPlan and the errors of reading the list.
        """
        entry = self.of_grid(request.grid) if request.grid else self
        if request.weights and entry.of_weights is not None:
            entry = entry.of_weights(request.weights)
        if not request.prompts or entry.asking is None:
            return entry
        return _asking(entry.asking, prompt_list(request.prompts).texts)

    def of_grid(self, grid: Grid) -> ModelEntry:
        """Return the entry for images with other rows and columns of tokens.

        Raises BadPlan for a grid that the model does not support.
        """
        if grid == self.grid:
            return self
        if self.sized is None or grid not in self.grids:
            by_distance = sorted(self.grids or (self.grid,), key=lambda each: abs(math.log(each[0] / each[1] * grid[1] / grid[0])))
            near = ", ".join(f"{rows}×{columns}" for rows, columns in by_distance[:NEAR])
            raise BadPlan(f"{self.name} has no images of {grid[0]}×{grid[1]} tokens (rows × columns).",
                          remedy=f"Use a grid that it has; the nearest by aspect ratio: {near}.")
        return _of_size(self.sized, grid)

    @property
    def conditions(self) -> str:
        """The classes or prompts, as they enter the identity of a case."""
        return f"{self.classes} prompts {digest(self.prompts)}, balanced" if self.prompts else f"{self.classes} classes, balanced"


@lru_cache(maxsize=32)
def _of_size(sized: Callable[[Grid], ModelEntry], grid: Grid) -> ModelEntry:
    """Cache entries by grid, so that lists of prompts are read once for each."""
    return sized(grid)


@lru_cache(maxsize=32)
def _asking(asking: Callable[[tuple[str, ...]], ModelEntry], texts: tuple[str, ...]) -> ModelEntry:
    """Cache entries by list, with the shapes computed from it."""
    return asking(texts)
