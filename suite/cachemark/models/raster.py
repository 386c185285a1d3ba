"""The generation loop of next-token models: a condition, then the tokens of an image one by one in raster order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step, Tokens, raster_steps
from ..contract.method import Method, graph_key, run_blocks
from ..core.spec import Sampling
from .sampling import draw, guide, guided


class RasterModel(nn.Module):
    """A stack of blocks that predicts the next token. What a model adds is how its condition and its tokens are fed and how hidden states
    become logits."""

    paradigm = "next-token"
    sites: Sequence[Site]

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The blocks, one at each of ``sites``."""

    @abstractmethod
    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Shape of a generation of these samples by this model."""

    @abstractmethod
    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        """The condition that pass 0 is fed for ``labels`` (batch,), rows first."""

    @abstractmethod
    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        """The input of a pass: from what :meth:`first` gave, else from the tokens (batch,) that were drawn last. ``place`` (1,) is the
        index of the token that is drawn next, ``starts`` (rows,) the condition entries of each row."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head in the model's dtype, then fp32."""

    def allowed(self, logits: Tensor, place: Tensor) -> Tensor:
        """The guided logits (batch, vocab) of the token at ``place`` (1,) without those that cannot stand there."""
        return logits

    def initialise(self, seed: int) -> Self:
        """Random weights: normal, std 0.02, without biases. The head too, where the authors start it at zero: benchmarks want real
        logits."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.data.zero_()
        return self

    def forward(self, tokens: Tokens, step: Step, method: Method) -> Tensor:
        """One pass of the stack under a method: hidden states before the final norm, (rows, tokens, dim)."""
        return method.stack("decoder", step, tokens, lambda fed: run_blocks(self.sites, self.blocks, step, method, fed).x)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[int, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64 for ``labels`` (batch,) under ``method``.

        ``forced`` (batch, N) replaces what is drawn; ``see(i, logits)`` receives the guided fp32 logits (batch, 1, vocab)
        of token i; ``mark(i)`` is called when token i has been drawn, for a clock. Samples are generated in the order of the lengths
        of their conditions, since attention takes neighbouring rows of one length together.
        """
        lengths = self.layout(seeds, sampling, labels.tolist()).condition
        order = sorted(range(len(labels)), key=lengths.__getitem__)
        if order == list(range(len(labels))):
            return self._generate(labels, seeds, method, sampling, memory, forced, see, mark)
        there = torch.tensor(order, device=labels.device)
        back = there.argsort()
        seen = None if see is None else lambda index, logits: see(index, logits[back])
        given = None if forced is None else forced[there]
        return self._generate(labels[there], [seeds[i] for i in order], method, sampling, memory, given, seen, mark)[back]

    def _generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, forced: Tensor | None,
        see: Callable[[int, Tensor], None] | None, mark: Callable[[int], None] | None,
    ) -> Tensor:
        layout, engine = self.layout(seeds, sampling, labels.tolist()), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device))
        starts = engine.hold("starts", torch.tensor(layout.condition, device=labels.device))
        places = torch.arange(layout.visual, device=labels.device)
        out = torch.empty(len(labels), layout.visual, dtype=torch.int64, device=labels.device)
        fed = self.first(labels, layout)
        wanted = forced is None, see is not None
        for step in raster_steps(layout):
            kind = layout.runs, step.count, guided(sampling, step.index), *wanted, graph_key(method, step)
            work = partial(self._pass, step, method, sampling, key, starts, wanted)
            found = engine.run(kind, work, (fed, places[step.index : step.index + 1]), method)
            method.end_step(step)
            fed = found[0] if forced is None else forced[:, step.index]
            out[:, step.index] = fed
            if see is not None:
                see(step.index, found[-1][:, None])
            if mark is not None:
                mark(step.index)
        return out

    def _pass(
        self, step: Step, method: Method, sampling: Sampling, key: Tensor, starts: Tensor, wanted: tuple[bool, bool],
        fed: Tensor, place: Tensor,
    ) -> tuple[Tensor, ...]:
        """From what is fed: what is ``wanted`` of the next tokens (batch,), those at ``place`` (1,), and of their logits (batch, vocab)."""
        hidden = self(self.feed(fed, step, place, starts), step, method)
        ends = hidden[torch.arange(len(starts), device=starts.device), starts - 1] if _ragged(method.layout, step) else hidden[:, -1]
        logits = self.allowed(guide(self.logits(ends), sampling, step.index), place)
        drawn = (draw(logits, sampling, key, place),) if wanted[0] else ()
        return (*drawn, logits) if wanted[1] else drawn


def _ragged(layout: Layout, step: Step) -> bool:
    """True in the pass that feeds conditions of several lengths: a shorter one is followed by padding that nobody sees."""
    return step.count == 0 and len(layout.runs) > 1
