"""The interface between the harness and a model of any family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..cache.arena import Memory
from ..cache.layout import Layout
from ..contract.method import Method
from ..core.spec import Sampling, digest
from ..roofline.bill import ParameterCounts
from .checkpoints import EXTRAS, WRAPPERS
from .prompt_lists import prompt_list


class Generator(Protocol):
    """A model that predicts tokens."""

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Shape of a generation of these samples. Only a model that is given prompts asks for their ``labels``, and only it is given
        them: its conditions differ in length."""

    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[Any, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Tokens (batch, N) for ``labels`` (batch,) under a method; in a masked model (batch, N, C) fp32. ``see(first, logits)``
        receives the guided fp32 logits (batch, count, vocab) of the tokens that a pass draws, (batch, count, bits, 2) where a token is
        drawn bit by bit, in a masked model ``see(places,
        tokens)`` their raster places (batch, count) and what was drawn there (batch, count, C), also where other tokens are
        ``forced`` upon the passes that follow. ``mark(index)`` is called when that many tokens and one have been drawn."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to run: the generator, the image decoder (tokens (batch, N) → images (batch, 3, H, W) in [−1, 1]), and
    the identity of its weights: that of the transformer and, behind a slash, of the decoder, each ``random:<seed>`` or a
    SHA-256. ``parameters`` are all tensors that stand before a generation, tables that are made once included. ``prompted``: the model is
    given prompts, so that a layout needs their labels. ``token_dtype`` is that in which tokens that are indices are stored."""

    generator: Generator
    decode: Callable[[Tensor], Tensor]
    weights: str
    parameters: Sequence[Tensor] = ()
    prompted: bool = False
    token_dtype: torch.dtype = torch.int32

    @property
    def random(self) -> bool:
        """True where what is generated is noise."""
        return self.weights.startswith("random:")

    @property
    def pictures(self) -> bool:
        """True where the image decoder has been trained: else its images say nothing."""
        return not self.weights.rpartition("/")[2].startswith("random:")


@dataclass(frozen=True)
class Request:
    """Options of loading a model. ``weights``, ``decoder_weights``: paths, or empty for the packaged or random ones. ``engine`` is
    ``reference`` for a model that repeats in every pass what its published code repeats. ``extractor`` and ``reference`` are paths
    too, of the network that sees the images and of what it saw in real ones; empty for those of the package. ``prompts`` is the name or
    the path of a list (:mod:`cachemark.models.prompt_lists`); empty for the model's own. ``metrics``: paths that the plan gives its
    metrics, each as (metric, option, path)."""

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


@dataclass(frozen=True)
class PublishedFile:
    """A file of the authors that a plan names under ``key`` (``weights`` or ``decoder_weights``): its ``name`` and who gives it away.

    ``build`` makes the module whose tensors are read from it, ``wrappers`` are the entries under which they are looked for before the
    top level, and names that match ``ignored`` may stand beside them. ``rename`` makes of a name in the file that of the module.
    ``pixels`` along a side of the images that it was trained for is given where the same shapes are published for others too.
    """

    key: str
    name: str
    origin: str
    build: Callable[[], nn.Module]
    wrappers: Sequence[str] = WRAPPERS
    ignored: Sequence[str] = EXTRAS
    rename: Callable[[str], str] = str
    pixels: int = 0


@dataclass(frozen=True)
class ModelEntry:
    """A model by name: everything a plan needs without loading it.

    ``presets`` names sampling settings; each model has ``paper``. ``shape(sampling, batch)`` is the layout of a generation,
    ``identity(request)`` what :class:`Loaded` will call its weights; neither loads anything. The latter refuses a file that
    does not fit, with BadCheckpoint. ``quality`` names the metrics that judge this model's images without a reference set, ``preset``
    the eyes and the real images with which they are compared else. ``files`` are those of the authors, for a published model; none
    comes with the package. ``prompts`` are the texts that a text-to-image model is asked for: they are its classes. ``asking(texts)`` is
    the entry of the same model for other texts, ``None`` where it is given none.
    ``parameter_counts()`` says what its products cost, ``None`` where nobody has counted them.
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

    def for_request(self, request: Request) -> ModelEntry:
        """The entry for the list of prompts that a request names; itself where it names none, or where the model is given none. Raises
        what :func:`~cachemark.models.prompt_lists.prompt_list` raises, and what ``asking`` raises of texts that the model does not read."""
        if not request.prompts or self.asking is None:
            return self
        return _asking(self.asking, prompt_list(request.prompts).texts)

    @property
    def conditions(self) -> str:
        """The classes or the prompts, as the identity of a case has them."""
        return f"{self.classes} prompts {digest(self.prompts)}, balanced" if self.prompts else f"{self.classes} classes, balanced"


@lru_cache(maxsize=32)
def _asking(asking: Callable[[tuple[str, ...]], ModelEntry], texts: tuple[str, ...]) -> ModelEntry:
    """The entry of a model for a list; it keeps what the list's shapes follow from."""
    return asking(texts)
