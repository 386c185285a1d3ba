"""The generation loop of next-token models: a condition, then image tokens in raster order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step, Tokens, raster_steps, window_step
from ..contract.decoder import Decoder, Sequential, spare, window
from ..contract.method import Method, graph_key, run_blocks
from ..core.spec import Sampling
from .sampling import draw, filter_logits, guide, guide_window, guided

See = Callable[[int, Tensor], None] | None
Mark = Callable[[int], None] | None


class RasterModel(nn.Module):
    """A stack of blocks that predicts the next token; subclasses add input and head."""

    paradigm = "next-token"
    sites: Sequence[Site]

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The blocks, one per entry of ``sites``."""

    @abstractmethod
    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Return the layout of a generation of these samples."""

    @abstractmethod
    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        """Return the condition that pass 0 is fed for ``labels`` (batch,), rows first."""

    @abstractmethod
    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        """Return the input of a pass, from the condition or from tokens (batch, count).

        ``place`` (count,): indices of the tokens to predict; ``starts`` (rows,): condition entries of each row.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the final norm and head in the model's dtype; return fp32."""

    def allowed(self, logits: Tensor, place: Tensor) -> Tensor:
        """Mask logits (batch, vocab) or (batch, count, vocab) of tokens not allowed at ``place``."""
        return logits

    def initialise(self, seed: int) -> Self:
        """Draw random weights, std 0.02, including the head that the authors start at zero; zero biases."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.data.zero_()
        return self

    def forward(self, tokens: Tokens, step: Step, method: Method) -> Tensor:
        """Run one pass under a method: hidden states before the final norm, (rows, tokens, dim)."""
        return method.stack("decoder", step, tokens, lambda fed: run_blocks(self.sites, self.blocks, step, method, fed).x)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *, decoder: Decoder | None = None,
        forced: Tensor | None = None, see: See = None, mark: Mark = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64 for ``labels`` (batch,) under ``method``, one per pass by default.

        ``forced`` (batch, N) replaces sampled tokens; ``see(i, logits)`` receives the guided fp32 logits (batch, kept, vocab) from token
        i on; ``mark(i)`` is called when token i exists, for timing. Samples are ordered by condition length, since attention processes
        adjacent rows of equal length together.
        """
        run = self._generate if decoder is None or isinstance(decoder, Sequential) else partial(self._in_windows, decoder)
        lengths = self.layout(seeds, sampling, labels.tolist()).condition
        order = sorted(range(len(labels)), key=lengths.__getitem__)
        if order == list(range(len(labels))):
            return run(labels, seeds, method, sampling, memory, forced, see, mark)
        there = torch.tensor(order, device=labels.device)
        back = there.argsort()
        return run(labels[there], [seeds[i] for i in order], method, sampling, memory, None if forced is None else forced[there],
                   None if see is None else lambda index, logits: see(index, logits[back]), mark)[back]

    def _generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, forced: Tensor | None, see: See,
        mark: Mark,
    ) -> Tensor:
        layout, engine = self.layout(seeds, sampling, labels.tolist()), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device))
        starts = engine.hold("starts", torch.tensor(layout.condition, device=labels.device))
        places = torch.arange(layout.visual, device=labels.device)
        out = torch.empty(len(labels), layout.visual, dtype=torch.int64, device=labels.device)
        fed = self.first(labels, layout)
        requested = forced is None, see is not None
        for step in raster_steps(layout):
            kind = layout.runs, step.count, guided(sampling, step.index), *requested, graph_key(method, step)
            work = partial(self._pass, step, method, sampling, key, starts, requested)
            outputs = engine.run(kind, work, (fed, places[step.index : step.index + 1]), method)
            method.end_step(step)
            fed = outputs[0] if forced is None else forced[:, step.index]
            out[:, step.index] = fed
            if see is not None:
                see(step.index, outputs[-1][:, None])
            if mark is not None:
                mark(step.index)
        return out

    def _pass(
        self, step: Step, method: Method, sampling: Sampling, key: Tensor, starts: Tensor, requested: tuple[bool, bool],
        fed: Tensor, place: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run one pass; return the ``requested`` among tokens (batch,) and logits (batch, vocab)."""
        hidden = self(self.feed(fed[:, None] if step.count else fed, step, place, starts), step, method)
        logits = self.allowed(guide(self.logits(_ends(hidden, starts, method, step)), sampling, step.index), place)
        drawn = (draw(logits, sampling, key, place),) if requested[0] else ()
        return (*drawn, logits) if requested[1] else drawn

    # -- several tokens a pass ----------------------------------------------------------------------------------------
    def _in_windows(
        self, decoder: Decoder, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory,
        forced: Tensor | None, see: See, mark: Mark,
    ) -> Tensor:
        """Sample a window of tokens per pass; the decoder accepts a prefix, and other entries are removed."""
        layout, engine = self.layout(seeds, sampling, labels.tolist()), memory.engine
        method.spare = 0 if memory.codec.grouped else spare(method, layout, decoder)
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device))
        starts = engine.hold("starts", torch.tensor(layout.condition, device=labels.device))
        places = torch.arange(layout.visual, device=labels.device)
        decoder.begin(layout, key, sampling.temperature == 0, memory)
        tokens = torch.zeros(len(labels), layout.visual, dtype=torch.int64, device=labels.device) if forced is None else forced.clone()
        accepted, count, most = 0, 1, 1
        while accepted < layout.visual:
            step = window_step(layout, accepted - 1, count, count - most) if accepted else Step(0, layout.visual)
            fed = tokens[:, accepted - 1 : accepted - 1 + count] if accepted else self.first(labels, layout)
            inside = sum(guided(sampling, place) for place in range(accepted, accepted + count))
            kind = "window", layout.runs, step.count, step.beyond, inside, graph_key(method, step)
            work = partial(self._window, step, method, sampling, starts)
            logits = engine.run(kind, work, (fed, places[accepted : accepted + count]), method)[0]
            correct = decoder.most = most
            if forced is None:
                correct = min(most, decoder.judge(accepted, filter_logits(logits, sampling) if sampling.temperature else logits, tokens))
            if correct < count:
                method.roll_back(count - correct)
            method.end_step(window_step(layout, accepted - 1, correct) if accepted else step)
            decoder.note(count, correct)
            if see is not None:
                see(accepted, logits[:, :correct])
            if mark is not None:
                for place in range(accepted, accepted + correct):
                    mark(place)
            accepted += correct
            count, most = window(method, decoder, accepted)
            if forced is None:
                decoder.propose(accepted, count, tokens)
            else:
                count = most
        return tokens

    def _window(self, step: Step, method: Method, sampling: Sampling, starts: Tensor, fed: Tensor, places: Tensor) -> tuple[Tensor]:
        """Return the logits (batch, count, vocab) of the tokens at ``places``."""
        hidden = self(self.feed(fed, step, places, starts), step, method)
        hidden = hidden if step.count else _ends(hidden, starts, method, step)[:, None]
        first = step.first + 1 if step.count else 0
        return (self.allowed(guide_window(self.logits(hidden), sampling, first), places),)


def _ends(hidden: Tensor, starts: Tensor, method: Method, step: Step) -> Tensor:
    """Return the hidden state of each row's last token, (rows, dim)."""
    padded = step.count == 0 and len(method.layout.runs) > 1  # the pass over conditions of different lengths
    return hidden[torch.arange(len(starts), device=starts.device), starts - 1] if padded else hidden[:, -1]
