"""One mechanism that turns the data of a model into its catalogue entry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ...cache.layout import Grid, Layout
from ...cache.masked_layout import MaskedLayout
from ...core import seeds
from ...core.errors import BadCheckpoint
from ...core.spec import Sampling
from ...roofline.passes import ParameterCounts
from .. import checkpoints
from ..entries import WRAPPERS
from ..prompts import TokenReader
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..registry import MODELS
from ..text_features import FeatureReader
from ..tiny.stored import BundledWeights
from ..weights import coder, identity, in_chunks, packaged, transformer

SUBSET = "s2k"  # its labels go through all prompts
SCENE_QUALITY = ("color_consistency",)  # of models of procedural scenes


@dataclass(frozen=True)
class Family:
    """Code shared by all sizes of a model; most fields are functions of the sizes, ``config``.

    ``network(config, parts, engine)`` builds the transformer. ``parts``: the image tokenizer of class-conditional models, or the texts as
    read; None for names and shapes only. ``check`` rejects files that shapes cannot distinguish. ``tables``: tensors computed once per
    model. ``decoding``: turns an image tokenizer into a function from tokens to images. ``prompted``: rows have one condition entry per
    prompt token, so the ``layout`` of a configuration takes prompts and labels. ``classes_in``: the tensor with a row per class, and its
    rows that are no class.
    """

    name: str
    paradigm: str
    origin: str
    network: Callable[..., nn.Module]
    counts: Callable[..., ParameterCounts]
    wrappers: Sequence[str] = WRAPPERS
    ignored: Sequence[str] = checkpoints.EXTRAS
    rename: Callable[[str], str] = str
    check: Callable[[Any, str], None] = lambda config, path: None
    tables: Callable[[Any], Sequence[Tensor]] = lambda model: ()
    decoding: Callable[[Any, Any, Request], Callable[[Tensor], Tensor]] = lambda config, tokenizer, request: tokenizer.decode
    grid: Callable[[Any], tuple[int, int]] = lambda config: (config.grid, config.grid)
    reader: Callable[[Any], TokenReader | FeatureReader] | None = None
    prompted: bool = False
    classes_in: tuple[str, int] = ("", 0)
    one_folder: bool = False  # the image tokenizer is in the folder of the weights
    views: bool = False  # tokens are only displayed, so their decoder is not part of the model
    token_dtype: torch.dtype = torch.int32


@dataclass(frozen=True)
class CatalogueModel:
    """One model of a family. Its weights are in the package if its image tokenizer is.

    Without weights, the weights of a published model are random. ``file``: name of the weights file; ``pixels``: see
    :class:`PublishedFile`. ``texts``: prompts of a text-to-image model; ``check_texts`` raises for texts that it cannot read. ``grids``:
    token grids of its aspect ratios, if it has several, and ``of_grid``: the model with one of them.
    """

    family: Family
    name: str
    config: Any
    file: str
    tokenizer: PublishedFile | BundledWeights[Any]
    presets: Mapping[str, Sampling]
    about: str
    pixels: int = 0
    texts: tuple[str, ...] = ()
    check_texts: Callable[[tuple[str, ...]], object] = lambda texts: None
    quality: tuple[str, ...] = ()
    preset: str = "adm"
    grids: tuple[Grid, ...] = ()
    of_grid: Callable[[Grid], CatalogueModel] | None = None

    @cached_property
    def weights(self) -> PublishedFile:
        """The file of the transformer."""
        family = self.family
        return PublishedFile("weights", self.file, family.origin, partial(family.network, self.config, None, "eager"), family.wrappers,
                             family.ignored, family.rename, self.pixels)

    @cached_property
    def reader(self) -> TokenReader | FeatureReader | None:
        """The reader of texts; None for class-conditional models."""
        return self.family.reader(self.config) if self.family.reader else None

    @cached_property
    def shapes(self) -> Any:
        """Prompts, or their lengths, as read with random weights."""
        return self.reader.shapes(self.texts) if self.reader else None

    def identity(self, request: Request) -> str:
        """Return hashes of transformer, text reader and image tokenizer. Raises BadCheckpoint."""
        request = self._complete(request)
        if request.weights:
            self.family.check(self.config, request.weights)
        digest = identity(self.weights, request)
        if self.reader and request.weights and (text := self.reader.identity(request.weights)):
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(self.tokenizer, request)}"

    def load(self, request: Request) -> Loaded:
        """Load the transformer and the image tokenizer, ready to run."""
        request, family = self._complete(request), self.family
        tokenizer = coder(self.tokenizer, request)
        parts = self.reader.read(self.texts, request) if self.reader else tokenizer
        make = partial(family.network, self.config, parts, request.engine)
        model = transformer(replace(self.weights, build=make), request)
        resident = [*model.parameters(), *family.tables(model), *tokenizer.parameters()]
        decode = in_chunks(family.decoding(self.config, tokenizer, request))
        return Loaded(model, decode, self.identity(request), resident, family.prompted, family.token_dtype)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        """Return the layout of a generation of ``batch`` samples."""
        prompts = (self.shapes, labels_of(batch, len(self.texts))) if self.family.prompted else ()
        text = {"text": max(self.shapes)} if self.reader and not self.family.prompted else {}
        layout: Layout = self.config.layout(range(batch), sampling, *prompts, **text)
        return layout

    def of_weights(self, path: str) -> ModelEntry:
        """Return the entry with as many classes as the class embedding of a file; this one for a file that cannot be read."""
        try:
            rows = _rows(self.family, self.config, path, tuple(file.stat().st_mtime_ns for file in checkpoints.parts(path)))
        except (BadCheckpoint, OSError):  # which the identity of the weights reports
            return self.entry
        classes = rows - self.family.classes_in[1]
        return self.entry if classes < 1 else replace(self, config=replace(self.config, classes=classes)).entry

    def asking(self, texts: tuple[str, ...]) -> ModelEntry:
        """Return the entry for other texts. Raises BadPlan or Unsupported for unreadable ones."""
        self.check_texts(texts)
        model = replace(self, texts=texts)
        _ = model.shapes
        return model.entry

    def sized(self, grid: Grid) -> ModelEntry:
        """Return the entry for another of its grids, with the same texts."""
        assert self.of_grid is not None
        return replace(self.of_grid(grid), texts=self.texts).entry

    @property
    def entry(self) -> ModelEntry:
        """The entry that plans name."""
        files: tuple[PublishedFile, ...] = () if isinstance(self.tokenizer, BundledWeights) else (self.weights, self.tokenizer)
        files = files[:1] if self.family.views else files
        return ModelEntry(
            self.name, self.family.name, self.family.paradigm, self.family.grid(self.config), len(self.texts) or self.config.classes,
            self.shape, self.load, self.identity, self.presets, self.quality, self.preset,
            f"{self.about}; weights optional, else random" if files else self.about, files, lambda: self.counts, self.texts,
            self.asking if self.texts else None, self.grids, self.sized if self.grids else None,
            self.of_weights if self.family.classes_in[0] else None,
        )

    @cached_property
    def counts(self) -> ParameterCounts:
        """Its products, whose image decoder is counted once for all bills."""
        layout = self.shape(self.presets["paper"], 1)

        def image() -> Tensor:
            # A bundled decoder runs in milliseconds; the meta device imports PyTorch's compiler, which takes seconds in every trial.
            device = "cpu" if isinstance(self.tokenizer, BundledWeights) else "meta"
            with torch.device(device), checkpoints.NoDraws():
                tokens = torch.empty(1, layout.visual, layout.channels) if isinstance(layout, MaskedLayout) else \
                    torch.zeros(1, layout.visual, dtype=torch.int64)
                return self.family.decoding(self.config, self.tokenizer.build(), Request())(tokens)

        return self.family.counts(self.config, image, *(() if self.reader is None else (self.shapes,)))

    def _complete(self, request: Request) -> Request:
        """Fill in paths that a request leaves open: bundled files, or the folder of the weights."""
        weights, images = request.weights, request.decoder_weights
        if images and self.family.views:
            raise BadCheckpoint(f"{self.name} decodes no images: it has no use for {images!r}.", remedy="Remove decoder_weights.")
        if isinstance(self.tokenizer, BundledWeights):
            weights = weights or str(packaged(self.weights.name))
            images = images or str(packaged(f"{self.tokenizer.name}.safetensors"))
        elif self.family.one_folder:
            images = images or weights
        return replace(request, weights=weights, decoder_weights=images)


@lru_cache(maxsize=32)
def _rows(family: Family, config: Any, path: str, changed: tuple[int, ...]) -> int:
    """Return the rows of the class embedding of a file that was last ``changed`` then."""
    file = PublishedFile("weights", "", family.origin, partial(family.network, config, None, "eager"), family.wrappers, family.ignored,
                         family.rename)
    return file.rows(path, family.classes_in[0])


def labels_of(batch: int, prompts: int) -> list[int]:
    """Return the prompts of the first ``batch`` samples of any subset, cycling through all prompts."""
    labels = seeds.subset(SUBSET, prompts).labels[:prompts]
    return [labels[i % len(labels)] for i in range(batch)]


def register(model: CatalogueModel) -> None:
    """Add a model to the registry."""
    MODELS.add(model.name)(model.entry)


def with_greedy(paper: Sampling) -> dict[str, Sampling]:
    """Return the presets of a model of codes: the sampling of its paper, and greedy decoding."""
    return {"paper": paper, "greedy": replace(paper, temperature=0.0)}
