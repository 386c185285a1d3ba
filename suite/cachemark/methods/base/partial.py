"""Masked models with partial passes, which compute only some of the tokens.

In a *full* pass everything is computed. In a *partial* pass some or all of the decoder's blocks compute the selected tokens alone, and the
encoder, if set, only newly known tokens. They attend to the keys and values of all tokens; keys and values of tokens that are not computed
come from an earlier pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor

from ...cache import random_streams as streams
from ...cache.arena import Memory
from ...cache.attention import attend
from ...cache.kernels.record import Entries
from ...cache.layout import Layout, Load, Site, Step, Tokens
from ...cache.masked_layout import MaskedLayout, MaskedStep, masked_steps, put, take
from ...contract.block import Block
from ...roofline.flops_budget import budget_of
from .annealed import Annealed

DECODER, ENCODER, HEAD = "decoder", "encoder", "head"


# -- keys and values --------------------------------------------------------------------------------------------------
class Places:
    """Keys and values at fixed positions, one per token, for some blocks and the first ``rows`` rows.

    They are written in place and a prefix is read as a whole: no mask, no concatenation.
    """

    def __init__(self, stack: str, blocks: Sequence[int], layout: MaskedLayout, rows: int, memory: Memory) -> None:
        self.codec, self.dtype, self.rows = memory.codec, layout.dtype, rows
        self.at = {block: i for i, block in enumerate(blocks)}
        self.k, self.v = memory.pairs(stack, (len(blocks), rows, layout.kv_heads, layout.places), layout.head_dim, layout.dtype)

    @property
    def logical_bytes(self) -> int:
        """Bytes of keys and values; at the fullest pass all that is allocated."""
        return sum(part.nbytes for part in (*self.k, *self.v))

    def fill(self, block: int, k: Tensor, v: Tensor) -> None:
        """Write the first positions of a block: ``k``, ``v`` (rows or more, heads, n, head_dim)."""
        for part, codes in self._coded(k[: self.rows], v[: self.rows]):
            part[self.at[block], :, :, : k.size(2)] = codes

    def update(self, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
        """Write ``k``, ``v`` at ``places``; return the keys and values of the first ``live`` positions.

        ``k``, ``v``: (rows, heads, m, head_dim); ``places``: (rows, m). The new entries are returned unquantized.
        """
        for part, codes in self._coded(k, v):
            part[self.at[block]].scatter_(2, wide(places, codes), codes)
        keys, values = self.read(block, live)
        if self.codec.exact:
            return keys, values
        return keys.scatter(2, wide(places, k), k), values.scatter(2, wide(places, v), v)

    def read(self, block: int, live: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``live`` positions, (rows, heads, live, head_dim)."""
        k, v = (tuple(part[self.at[block], :, :, :live] for part in parts) for parts in (self.k, self.v))
        return self.codec.decode(k, self.dtype), self.codec.decode(v, self.dtype)

    def _coded(self, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
        encode = self.codec.encode
        return list(zip((*self.k, *self.v), (*encode(k), *encode(v)), strict=True))


def wide(places: Tensor, like: Tensor) -> Tensor:
    """Expand ``places`` (rows, m) to every head and channel of ``like``: (rows, heads, m, width)."""
    return places[:, None, :, None].expand(-1, like.size(1), -1, like.size(-1))


# -- the encoder ------------------------------------------------------------------------------------------------------
class EncoderCache:
    """Encoder cache: encode ``recomputed`` tokens of the buffer and ``fresh`` ones of the image.

    The buffer's first tokens are recomputed. ``fresh(step)`` returns the raster positions, (rows, n) ascending, of the tokens that became
    known last. Fresh tokens attend to
    the keys and values of all known tokens; the other tokens keep theirs. Positions are filled in the order of arrival. State covers the
    first ``rows`` rows.
    """

    def __init__(self, layout: MaskedLayout, rows: int, memory: Memory, fresh: Callable[[MaskedStep], Tensor], recomputed: int) -> None:
        self.buffer, self.fresh = layout.buffer, fresh
        self.places = Places(ENCODER, range(layout.encoder), layout, rows, memory)
        self.first = memory.zeros("buffer", (rows, recomputed), torch.int64)
        self.first += torch.arange(recomputed, device=memory.device)

    def keep(self, canvas: Tensor) -> None:
        """Take the decoder's input of a full pass, (rows or more, places, dim)."""

    def encode(self, step: MaskedStep, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """Encode buffer and fresh tokens; zeros for all others."""
        known_positions, new = step.known[: len(self.first)], self.fresh(step)
        computed = torch.cat((self.first, self.buffer + torch.searchsorted(known_positions, new)), 1)
        return put(torch.zeros_like(tokens.x), computed, run(tokens.with_x(take(tokens.x, computed))))

    def attend(self, site: Site, step: MaskedStep, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the computed tokens to everything known."""
        live = self.buffer + step.first
        arrived = torch.arange(live - k.size(2) + self.first.size(1), live, device=k.device).expand(len(self.first), -1)
        at = torch.cat((self.first, arrived), 1)
        return attend(q, Entries.of(*self.places.update(site.layer, k, v, at, live)))[0]

    def canvas(self, step: MaskedStep, encoded: Tensor) -> Tensor:
        """Return the decoder's input of a partial pass."""
        return encoded


class Incremental(EncoderCache):
    """Encoder cache: a partial pass encodes the buffer and the tokens of the previous pass.

    The other tokens keep their last encoder output for the decoder.
    """

    def __init__(self, layout: MaskedLayout, rows: int, memory: Memory) -> None:
        super().__init__(layout, rows, memory, lambda step: step.previous[:rows], layout.buffer)
        self.encoded = memory.zeros("encoded", (rows, layout.places, layout.dim), layout.dtype)

    def keep(self, canvas: Tensor) -> None:
        """Store the decoder's input of a full pass, (rows or more, places, dim)."""
        self.encoded.copy_(canvas[: len(self.encoded)])

    def canvas(self, step: MaskedStep, encoded: Tensor) -> Tensor:
        """Return the decoder's input: ``encoded`` for fresh tokens, stored outputs for the others."""
        computed = torch.cat((self.first, self.buffer + self.fresh(step)), 1)
        self.encoded.copy_(put(self.encoded, computed, take(encoded, computed)))
        return self.encoded


# -- the decoder, and when --------------------------------------------------------------------------------------------
@dataclass
class Partial(Annealed, ABC):
    """Full and partial passes; a partial pass computes ``chosen`` positions of the decoder alone.

    A subclass defines which passes are full (:meth:`refreshes`), how many tokens the others keep (:meth:`keep`) and the tokens of each
    block (:meth:`spans`). It sets ``chosen`` before the first block that computes the chosen tokens alone. ``carries``: a token left out
    keeps its last hidden state at the decoder's output, else zeros. ``encoder_cache``: the encoder computes only new tokens. ``rows``: how
    many rows a partial pass computes; all, unless :meth:`check` lowers it.
    """

    skips = True
    carries = False
    encoder_cache = False

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return cls().fit(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        return budget_of(self, cast(MaskedLayout, layout))

    # -- decisions of a subclass, on the host except for the selection itself -----------------------------------------
    @abstractmethod
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return parameters that cost at most this fraction of an image's FLOPs without a cache."""

    @abstractmethod
    def check(self) -> None:
        """Check the parameters and fill in those that depend on ``shape`` (the layout) or ``steps``."""

    @abstractmethod
    def refreshes(self, step: MaskedStep) -> bool:
        """Return whether this pass is full."""

    @abstractmethod
    def keep(self, step: MaskedStep) -> int:
        """Return the number of tokens selected in this partial pass."""

    def spans(self, block: int) -> tuple[bool, bool]:
        """Return whether this block computes all tokens in a partial pass: in its attention, and in its MLP."""
        return False, False

    # -- one generation -----------------------------------------------------------------------------------------------
    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.shape, self.rows = cast(MaskedLayout, layout), layout.rows
        self.steps, places = masked_steps(self.shape, self.shape.steps), self.shape.places
        self.check()
        self.full = [step.index == 0 or self.refreshes(step) for step in self.steps]
        self.kept = [places if full else min(places, self.keep(step)) for full, step in zip(self.full, self.steps, strict=True)]

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self._forget()
        named = memory.zeros("streams", (2, layout.rows), torch.int64)
        self.seeds, self.branches = named.copy_(torch.tensor([layout.seeds, layout.branches]))
        blocks = [block for block in range(layout.layers) if not self.spans(block)[0]]
        narrow = min(self.kept) < self.shape.places
        self.places = Places(DECODER, blocks, self.shape, self.rows, memory) if narrow and blocks else None
        self.encoder: EncoderCache | None = Incremental(self.shape, self.rows, memory) if self.encoder_cache else None

    @property
    def logical_bytes(self) -> int:
        return sum(places.logical_bytes for places in (self.places, self.encoder and self.encoder.places) if places)

    def narrows(self, step: Step) -> bool:
        """Return whether tokens are left out in this pass."""
        return self.kept[step.index] < self.shape.places

    def lots(self, step: MaskedStep, rows: int) -> Tensor:
        """Return random numbers in (0, 1), (rows, places), from each sample's own stream."""
        key = streams.keys(self.seeds[:rows], "evict", step.first, branch=self.branches[:rows])
        return streams.uniform(key, self.shape.places)

    def image(self, places: Tensor, rows: int) -> Tensor:
        """Return the decoder positions of the image's ``places``, of the first rows."""
        return self.shape.buffer + places[:rows]

    def graph_key(self, step: Step) -> None:
        """Return None: the head does not depend on the pass of the transformer."""

    # -- the scopes ---------------------------------------------------------------------------------------------------
    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        if name == HEAD:
            return run(tokens)
        if self.full[step.index]:
            if name == DECODER and self.encoder:
                self.encoder.keep(tokens.x)
            return run(tokens)
        tokens, at = tokens.rows(slice(self.rows)), cast(MaskedStep, step)
        if name == ENCODER:
            return self.encoder.encode(at, tokens, run) if self.encoder else run(tokens)
        out = run(tokens.with_x(self.encoder.canvas(at, tokens.x)) if self.encoder else tokens)
        if self.rest is not None and self.chosen is not None:
            out = put(self.rest if self.carries else torch.zeros_like(self.rest), self.chosen, out)
        self._forget()
        return out

    def _forget(self) -> None:
        """Reset the selection of a pass: selected and other positions, and hidden states of all tokens."""
        self.chosen: Tensor | None = None
        self.others: Tensor | None = None
        self.rest: Tensor | None = None

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if site.stack != DECODER or not self.narrows(step):
            return super().block(site, step, tokens, block)
        attention, mlp = self.spans(site.layer)
        tokens = block.mix(site, step, self._spanned(tokens, attention), self)
        tokens = self._spanned(tokens, mlp)
        return block.join(tokens, block.branch(tokens))

    def _spanned(self, tokens: Tokens, all_tokens: bool) -> Tokens:
        """Return the tokens that are computed next: all of them, or the selected ones."""
        if all_tokens is (self.rest is None):
            return tokens
        assert self.chosen is not None, "tokens are chosen before any is left out"
        if self.rest is None:
            self.rest = tokens.x
            return tokens.with_x(take(tokens.x, self.chosen))
        everything, self.rest = put(self.rest, self.chosen, tokens.x), None
        return tokens.with_x(everything)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = cast(MaskedStep, step)
        if site.stack == ENCODER and self.encoder:
            if not self.full[step.index]:
                return self.encoder.attend(site, at, q, k, v)
            self.encoder.places.fill(site.layer, k, v)
        if site.stack == DECODER and self.rest is not None:
            return self.attend_chosen(site.layer, q, k, v)
        if site.stack == DECODER and self.places and site.layer in self.places.at:
            self.places.fill(site.layer, k, v)
        return super().attend(site, step, q, k, v)

    def attend_chosen(self, block: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the selected tokens to all positions."""
        assert self.places is not None
        assert self.chosen is not None
        return attend(q, Entries.of(*self.places.update(block, k, v, self.chosen, self.shape.places)))[0]

    # -- on paper -----------------------------------------------------------------------------------------------------
    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        if site.stack == HEAD or self.full[step.index]:
            return load
        if site.stack == ENCODER:
            fresh = self.shape.buffer + self.steps[step.index - 1].count if self.encoder_cache else load.tokens
            return Load(self.rows, fresh, load.keys, fresh)
        if not self.narrows(step):
            return load._replace(rows=self.rows)
        attention, mlp = self.spans(site.layer)
        few = self.kept[step.index]
        return Load(self.rows, load.tokens if attention else few, load.keys, load.mlp if mlp else few)


@dataclass
class Selecting(Partial):
    """Partial passes that select tokens in the attention of one block of the decoder.

    A subclass defines this block (:attr:`selects_at`), the selected tokens (:meth:`choose`) and the computation of the other blocks
    (:meth:`spans`).
    """

    @property
    @abstractmethod
    def selects_at(self) -> int:
        """The block in whose attention tokens are selected."""

    @abstractmethod
    def spans(self, block: int) -> tuple[bool, bool]:
        """Return whether this block computes all tokens in a partial pass: in its attention, and in its MLP."""

    @abstractmethod
    def choose(self, step: MaskedStep, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return all positions (rows, places), the selected ones first.

        ``q``, ``k``, ``v`` belong to all tokens.
        """

    @property
    def reuses(self) -> bool:
        """True if a partial pass reads results of an earlier one."""
        return self.encoder_cache or self.rows < self.shape.rows or not all(self.spans(block)[0] for block in range(self.shape.layers))

    def idle_reason(self, layout: Layout) -> str:
        if self.reuses or not any(map(self.narrows, self.steps)):  # without a choice it is seen on paper
            return ""
        return (f"No pass reuses results of an earlier one: tokens are left out after block {self.selects_at} (from 0), but none of the "
                f"decoder's {layout.layers} blocks leaves them out of its attention.")

    def graph_key(self, step: Step) -> None:
        """Return None: the head does not depend on the pass of the transformer."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site == (DECODER, self.selects_at) and self.narrows(step):
            chosen, self.others = self.choose(cast(MaskedStep, step), q, k, v).tensor_split([self.kept[step.index]], 1)
            self.chosen = chosen.sort(1).values
        return super().attend(site, step, q, k, v)
