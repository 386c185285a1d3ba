"""The generation loop of next-token models: a condition, then image tokens in raster order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step, Tokens, raster_steps, window_step
from ..contract.decoder import Decoder, Front, Sequential, check_fronts, spare, window
from ..contract.method import Method, graph_key, run_blocks
from ..core.errors import Unsupported
from ..core.spec import Sampling
from .sampling import draw, draw_fused, filter_logits, guide, guide_window, guided, token_keys

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

    @property
    def lined(self) -> tuple[int, int, int, int] | None:
        """The first code, their number, the end of a line and its length, if that is what :meth:`allowed` allows; else None."""
        return None

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
        i on; ``mark(i)`` is called when i + 1 tokens exist, for timing. Samples are ordered by condition length, since attention processes
        adjacent rows of equal length together.
        """
        layout = self.layout(seeds, sampling, labels.tolist())
        if decoder is None or isinstance(decoder, Sequential):
            run = self._generate
        elif fronts := check_fronts(decoder, method, layout):
            run = partial(self._in_fronts, fronts, decoder)
        else:
            run = partial(self._in_windows, decoder)
        order = sorted(range(len(labels)), key=layout.condition.__getitem__)
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
        if (keys := token_keys(key, places)) is not None:
            keys = engine.hold("keys", keys)
        out = torch.empty(len(labels), layout.visual, dtype=torch.int64, device=labels.device)
        fed = self.first(labels, layout)
        requested = forced is None, see is not None
        for step in raster_steps(layout):
            kind = layout.runs, step.count, guided(sampling, step.index), *requested, graph_key(method, step)
            work = partial(self._pass, step, method, sampling, key, keys, starts, requested)
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
        self, step: Step, method: Method, sampling: Sampling, key: Tensor, keys: Tensor | None, starts: Tensor,
        requested: tuple[bool, bool], fed: Tensor, place: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run one pass; return the ``requested`` among tokens (batch,) and logits (batch, vocab)."""
        hidden = self(self.feed(fed[:, None] if step.count else fed, step, place, starts), step, method)
        logits = self.logits(_ends(hidden, starts, method, step))
        if requested == (True, False) and (self.lined or type(self).allowed is RasterModel.allowed):
            tokens = draw_fused(logits, sampling, key, place, step.index, self.lined)
            if tokens is not None:
                return (tokens,)
        logits = self.allowed(guide(logits, sampling, step.index), place)
        if not requested[0]:
            return (logits,) if requested[1] else ()
        own = None if keys is None else keys.index_select(0, place)[0]
        tokens = draw(logits, sampling, key, place, own)
        return (tokens, logits) if requested[1] else (tokens,)

    # -- several tokens per pass --------------------------------------------------------------------------------------
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

    def _window(
        self, step: Step, method: Method, sampling: Sampling, starts: Tensor, fed: Tensor, places: Tensor,
    ) -> tuple[Tensor]:
        """Return the logits (batch, count, vocab) of the tokens at ``places``."""
        hidden = self(self.feed(fed, step, places, starts), step, method)
        hidden = hidden if step.count else _ends(hidden, starts, method, step)[:, None]
        first = step.first + 1 if step.count else 0
        return (self.allowed(guide_window(self.logits(hidden), sampling, range(first, first + hidden.size(1))), places),)

    # -- several lines per pass ---------------------------------------------------------------------------------------
    def _in_fronts(
        self, fronts: Sequence[Front], decoder: Decoder, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling,
        memory: Memory, forced: Tensor | None, see: See, mark: Mark,
    ) -> Tensor:
        """Sample tokens of several lines per pass, as scheduled."""
        if memory.codec.grouped:
            raise Unsupported(f"{decoder.name} replaces entries, and the codec {memory.codec.name} gives keys a range by groups of tokens.",
                              remedy="Use another codec, such as int4.")
        layout, engine = self.layout(seeds, sampling, labels.tolist()), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device))
        starts = engine.hold("starts", torch.tensor(layout.condition, device=labels.device))
        decoder.begin(layout, key, sampling.temperature == 0, memory)
        tokens = torch.zeros(len(labels), layout.visual, dtype=torch.int64, device=labels.device) if forced is None else forced.clone()
        requested, stored = (forced is None, see is not None), list[int]()  # positions of the visual entries, in storage order
        for front in fronts:
            for place in front.replaces:
                _remove(method, stored, place)
            stored += front.step.places
            fed = tokens[:, front.takes] if front.step.count else self.first(labels, layout)
            places = torch.tensor([place + 1 for place in front.step.places] or [0], device=labels.device)
            kind = "front", layout.runs, front.step, *requested
            work = partial(self._front, front, max(stored, default=0) > min(front.step.places, default=0), method, sampling, key, starts,
                           requested)
            outputs = engine.run(kind, work, (fed, places), method)
            method.end_step(front.step)
            if forced is None:
                tokens[:, front.draws] = outputs[0]
            for number, place in enumerate(front.draws):
                if see is not None:
                    see(place, outputs[-1][:, number : number + 1])
                if mark is not None:
                    mark(sum(decoder.kept) + number)
            decoder.note(len(front.draws), len(front.draws))
        return tokens

    def _front(
        self, front: Front, masked: bool, method: Method, sampling: Sampling, key: Tensor, starts: Tensor, requested: tuple[bool, bool],
        fed: Tensor, places: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run one pass; return the ``requested`` among tokens (batch, drawn) and logits (batch, drawn, vocab)."""
        step = replace(front.step, visible=_visible(method, places - 1)) if masked else front.step
        hidden = self(self.feed(fed, step, places, starts), step, method)
        hidden = hidden[:, -len(front.draws) :] if step.count else _ends(hidden, starts, method, step)[:, None]
        drawn = places[-len(front.draws) :]
        logits = self.allowed(guide_window(self.logits(hidden), sampling, front.draws), drawn)
        tokens = (draw(logits, sampling, key[:, None], drawn),) if requested[0] else ()
        return (*tokens, logits) if requested[1] else tokens


def _visible(method: Method, fed: Tensor) -> Tensor:
    """Return which visual entries each token at the positions ``fed`` may see, (tokens, stored and own).

    A token sees all entries up to its own position.
    """
    bank = method.banks[0]
    condition = bank.runs[0].condition
    stored = bank.visual[0, 0, 0, condition : condition + bank.live_visual]
    return torch.cat((stored.to(fed.dtype), fed)) <= fed[:, None]


def _remove(method: Method, stored: list[int], place: int) -> None:
    """Remove the entry of a position; the last one takes its place."""
    index = stored.index(place)
    for bank in method.banks:
        bank.evict_visual(index)
    stored[index] = stored[-1]
    stored.pop()


def _ends(hidden: Tensor, starts: Tensor, method: Method, step: Step) -> Tensor:
    """Return the hidden state of each row's last token, (rows, dim)."""
    padded = step.count == 0 and len(method.layout.runs) > 1  # the pass with conditions of different lengths
    return hidden[torch.arange(len(starts), device=starts.device), starts - 1] if padded else hidden[:, -1]
