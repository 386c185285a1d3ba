"""The parts that the models of a family share, and the entries that its members get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...cache.layout import Layout
from ...core.spec import Sampling
from ...roofline.bill import ParameterCounts
from .. import checkpoints
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..registry import MODELS
from ..tiny.stored import BundledWeights
from ..weights import coder, identity, packaged, transformer


@dataclass(frozen=True)
class Family:
    """The parts of a family, most of them functions of a model's sizes, its ``config``.

    ``network(config, tokenizer, engine)`` makes the transformer on any device, without a tokenizer for names and shapes alone. Its weights
    are looked for under ``wrappers``; names that match ``ignored`` may stand beside them, and ``check`` refuses a file for what shapes do
    not tell. ``tables`` are the tensors of a model that are made once, beside its parameters. ``origin`` says who gives the files away.
    """

    name: str
    paradigm: str
    origin: str
    network: Callable[..., nn.Module]
    layout: Callable[[Any, Sequence[int], Sampling, torch.dtype, str], Layout]
    counts: Callable[[Any, Callable[[], Any]], ParameterCounts]
    wrappers: Sequence[str] = checkpoints.WRAPPERS
    ignored: Sequence[str] = checkpoints.EXTRAS
    check: Callable[[Any, str], None] = lambda config, path: None
    tables: Callable[[Any], Sequence[Tensor]] = lambda model: ()

    def bundled(
        self, name: str, config: Any, tokenizer: BundledWeights[Any], presets: Mapping[str, Sampling], summary: str
    ) -> ModelEntry:
        """The entry of a model whose files the package carries; a request may name others."""
        own = self._own_file(config, f"{name}.safetensors")

        def complete(request: Request) -> Request:
            return replace(request, weights=request.weights or str(packaged(own.name)),
                           decoder_weights=request.decoder_weights or str(packaged(f"{tokenizer.name}.safetensors")))

        def known(request: Request) -> str:
            request = complete(request)
            tokenizer.check(request.decoder_weights)
            return f"{self._known(config, own, request)}/{checkpoints.sha256(request.decoder_weights)}"

        def load(request: Request) -> Loaded:
            request = complete(request)
            return self._loaded(config, request, tokenizer.load(request.decoder_weights, device=request.device), known(request))

        return self._entry(name, config, partial(tokenizer.model, None), presets, summary, load=load, identity=known,
                           quality=("legend",), preset="scene")

    def published(
        self, name: str, config: Any, weights: str, tokenizer: PublishedFile, presets: Mapping[str, Sampling], summary: str, pixels: int = 0
    ) -> ModelEntry:
        """The entry of a model whose transformer is published in a file called ``weights``; where a request names no file, weights are
        random. ``pixels`` as in :class:`PublishedFile`."""
        own = replace(self._own_file(config, weights), pixels=pixels)

        def known(request: Request) -> str:
            return f"{self._known(config, own, request)}/{identity(tokenizer, request)}"

        def load(request: Request) -> Loaded:
            return self._loaded(config, request, coder(tokenizer, request), known(request))

        return self._entry(name, config, tokenizer.build, presets, f"{summary}; weights optional, else random", load=load, identity=known,
                           files=(own, tokenizer))

    def _own_file(self, config: Any, name: str) -> PublishedFile:
        return PublishedFile("weights", name, self.origin, partial(self.network, config), self.wrappers, self.ignored)

    def _known(self, config: Any, own: PublishedFile, request: Request) -> str:
        if request.weights:
            self.check(config, request.weights)
        return identity(own, request)

    def _loaded(self, config: Any, request: Request, tokenizer: Any, weights: str) -> Loaded:
        make = partial(self.network, config, tokenizer, request.engine)
        model: Any = transformer(make, request, ignore=self.ignored, wrappers=self.wrappers)
        return Loaded(model, tokenizer.decode, weights, [*model.parameters(), *self.tables(model), *tokenizer.parameters()])

    def _entry(
        self, name: str, config: Any, tokenizer: Callable[[], Any], presets: Mapping[str, Sampling], summary: str, **fields: Any
    ) -> ModelEntry:
        def shape(sampling: Sampling, batch: int) -> Layout:
            return self.layout(config, range(batch), sampling, torch.float32, "cpu")

        return ModelEntry(
            name, self.name, self.paradigm, (config.grid, config.grid), config.classes, shape, presets=presets, summary=summary,
            parameter_counts=partial(self.counts, config, lambda: tokenizer().decode), **fields,
        )


def register(entry: ModelEntry) -> None:
    """Let plans name a model."""
    MODELS.add(entry.name)(entry)


def with_greedy(paper: Sampling) -> dict[str, Sampling]:
    """The presets of a model of codes: the sampling of its paper, and the same without chance."""
    return {"paper": paper, "greedy": replace(paper, temperature=0.0)}
