"""A cache method: an argument of ``generate``, called at nested scopes of the forward pass.

A method overrides the innermost scope that suffices: ``evict`` < ``observe`` < ``attend`` < ``block`` < ``stack``. It is made
anew for each generation; its dataclass fields are its parameters; it never refers to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import KERNEL, MASS_KERNEL, attention
from ..cache.bank import SlotBank
from ..cache.banks import banks
from ..cache.layout import Layout, Site, Step, Tokens
from ..cache.masked_layout import MaskedStep
from ..cache.slot import Slot, Stage
from .planning import Planning


class Block(Protocol):
    """The parts of a transformer block, as a method may call them."""

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        """Attention with its gate and residual."""

    def branch(self, tokens: Tokens) -> Tensor:
        """The MLP alone, (rows, tokens, width)."""

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        """Gate and residual of the MLP."""


@dataclass
class Method(Planning):
    """The scopes of a pass, outermost first; the default behavior of each is the full cache. What a plan asks before anything runs is
    :class:`~.planning.Planning`.

    Class attributes: ``evict_after`` is the edge at which ``evict`` is called (``token``, ``line`` or none); ``evicts`` and ``skips`` say
    which contract tests apply; ``slack`` is how many entries above its budget a slot may hold during a pass. ``spare`` is set before
    :meth:`begin`: entries above its capacity that a slot holds while a decoder looks ahead, by :func:`~.decoder.spare`.
    """

    evict_after: ClassVar[str] = ""
    evicts: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    spare = 0  # not annotated, so that it is no parameter

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """Choose which rows and tokens are computed at all. A stack ends before its final norm."""
        return run(tokens)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        """One block: attention, then the MLP."""
        tokens = block.mix(site, step, tokens, self)
        return block.join(tokens, block.branch(tokens))

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write, attend, observe. ``q`` (rows, heads, tokens, head_dim); ``k``, ``v`` with kv_heads; K is after RoPE. Where there is no
        slot the tokens of the pass see each other."""
        slot = self.slots.get(site)
        if slot is None:
            return F.scaled_dot_product_attention(q, k, v)
        if step.scale:
            return _pass_scale(self, site, step, slot, q, k, v)
        slot.append(k, v, condition=step.count == 0)
        if self.stage is not None:
            self.stage.put(slot)
        out, mass = attention(q, slot, self.stage, mass=self.needs_mass, causal=step.causal)
        self.observe(site, step, slot, q, mass)
        return out

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        """See the queries and, if ``needs_mass``, the attention mass of each live key (rows, kv_heads, live)."""

    # -- what is stored, and what is evicted at the end of a pass ---------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        """Entries that this site's slot must hold. What no later pass reads is not stored; with 0 there is no slot."""
        return layout.stored

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        """Declare storage for one generation. Everything a method keeps comes from ``memory``."""
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        capacity = {site: entries for site in sites if (entries := self.capacity(layout, site))}
        if self.spare:
            capacity = {site: entries + min(self.spare, max(0, layout.stored - entries)) for site, entries in capacity.items()}
        self.banks: list[SlotBank] = banks(layout, capacity, memory)
        self.slots: dict[Site, Slot] = {site: slot for bank in self.banks for site, slot in zip(bank.sites, bank.slots, strict=True)}
        entries = max([bank.reach for bank in self.banks if bank.reach > bank.capacity or not memory.codec.exact], default=0)
        self.stage: Stage | None = Stage(layout, entries, memory) if entries else None
        for bank in self.banks:
            self.prepare(bank, memory)

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate the method's own state for a bank."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Drop entries at the edge ``evict_after``, for all sites of a bank at once."""

    def end_step(self, step: Step) -> None:
        """Close a pass: number what it wrote, then evict where the edge ``evict_after`` is complete. Called by the model."""
        for bank in self.banks:
            bank.end_step(step)
            if self.evict_after in step.edges:
                self.evict(step, bank)

    def horizon(self, first: int) -> int:
        """The number of visual tokens from ``first`` on that may be fed before an entry may be evicted or what the method holds would
        depend on which of them stay: as many drafts a decoder may keep at once. Ask :func:`~.decoder.horizon`."""
        return 1

    def beyond(self, first: int) -> int:
        """The number of visual tokens that may be fed behind the :meth:`horizon` in the same pass, of which none stays: what the method
        notes of a pass must be the same without the last ``step.beyond`` of its tokens. Ask :func:`~.decoder.beyond`."""
        return 0

    def roll_back(self, count: int) -> None:
        """Forget the last ``count`` tokens of the pass that has just run, before :meth:`end_step` closes it as if they had not been fed."""
        for bank in self.banks:
            bank.roll_back(count)

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of every bank's runs of rows: all that the host keeps of what has passed."""
        return tuple(tuple(bank.live) for bank in self.banks)

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for bank, live in zip(self.banks, lengths, strict=True):
            for slot in bank.slots:
                slot.live[:] = live

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values, all sites together, at the fullest pass."""
        return sum(bank.logical_bytes for bank in self.banks)

    @property
    def high_water_bytes(self) -> int | None:
        """Bytes of live keys and values at the fullest moment between two layers of a pass, where that is known: see
        :class:`~.heads.PerHead`."""
        return None

    @property
    def live_bytes(self) -> int | None:
        """Bytes of keys and values that live now, all sites together; None where a method fills places that stand from the beginning, so
        that there is no number of live ones."""
        return sum(bank.live_bytes for bank in self.banks)

    # -- next-scale models: a pass writes a whole scale, of which only some entries may survive ---------------------------
    def room(self, site: Site) -> int:
        """Entries that this site may hold now, at most its capacity."""
        return self.slots[site].bank.capacity

    def attend_scale(self, step: Step, q: Tensor, slot: Slot, stage: Stage | None) -> tuple[Tensor, Tensor | None]:
        """Attend to [live | the scale's own], which stand in the stage where one is given: output and, if it is wanted, mass."""
        return attention(q, slot, stage, mass=self.needs_mass)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Sequence[range] | Tensor:
        """Places of all ``total`` entries [live | the scale's own] that stay where they do not all fit; see :meth:`Slot.absorb`. By
        default those that were there before."""
        return [range(slot.live[0])]

    def observe_raw(self, site: Site, step: Step, q: Tensor) -> None:
        """See the queries before bias, norm, scale and rotation, (rows, heads, tokens, head_dim), right before ``attend``."""

    @property
    def needs_raw_queries(self) -> bool:
        """True if ``observe_raw`` wants the queries, which costs a copy of them."""
        return False

    @property
    def needs_mass(self) -> bool:
        """True if ``observe`` wants the attention mass of each key, which no fused kernel returns."""
        return False

    # -- which tokens of a masked model, and when ---------------------------------------------------------------------
    def ordered(self, order: Tensor) -> Tensor:
        """Masked: the order in which places are predicted, (rows, N), the tail first; ``order`` is the sample's own random one."""
        return order

    def ranked(self, step: MaskedStep, z: Tensor) -> Tensor:
        """Masked: the tokens of a pass as numbers 0 … count − 1, (batch, count), in the order in which the parts of :meth:`denoising`
        take them. Asked where there are several parts. ``z`` (batch, count, width): what the head is told, without the unconditional
        rows."""
        return torch.arange(z.size(1), device=z.device).expand(z.shape[:2])

    # -- how a pass may be run ----------------------------------------------------------------------------------------
    @property
    def kernel(self) -> str:
        """Name of the attention kernel; a speedup between two kernels is refused."""
        return MASS_KERNEL if self.needs_mass else KERNEL

    @property
    def capturable(self) -> bool:
        """True if what runs in a step can be recorded as a graph: no host read, no shape that depends on values."""
        return True

    def graph_key(self, step: Step) -> Hashable:
        """The part of ``step`` that the scopes of a pass read on the host, beside live lengths and whether visual tokens are fed. A
        recorded pass is repeated only where it is the same. A class that overrides a scope and not this is taken to read everything."""
        return None


def run_blocks(sites: Sequence[Site], blocks: Iterable[Any], step: Step, method: Method, tokens: Tokens) -> Tokens:
    """Run the blocks of a stack, one at each of ``sites``, one after the other."""
    for site, block in zip(sites, blocks, strict=True):
        tokens = method.block(site, step, tokens, block)
    return tokens


SCOPES = ("stack", "block", "attend", "observe")


def graph_key(method: Method, step: Step) -> Hashable:
    """:meth:`Method.graph_key` where the class that overrides a scope says it too, else the pass itself."""
    for cls in type(method).__mro__:
        if "graph_key" in vars(cls):
            return method.graph_key(step)
        if any(scope in vars(cls) for scope in SCOPES):
            break
    return "pass", step.index


def _pass_scale(method: Method, site: Site, step: Step, slot: Slot, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to a scale and keep what survives of it.

    A scale that fits is written to the slot and read there. Any other stands in the stage until it is known what of it survives; so
    does every scale under a lossy codec, since a pass sees its own keys as they are. Nobody reads the last scale again, so it is kept
    only where the method has room for everything.
    """
    n, own = slot.live[0], step.count
    fits = n + own <= method.room(site) and not (step.last and slot.bank.capacity < method.layout.visual)
    stage = None if fits and slot.bank.codec.exact else method.stage
    slot.number(step.first, own)
    if stage is None:
        slot.append(k, v)
    else:
        stage.put(slot, k, v)
    out, mass = method.attend_scale(step, q, slot, stage)
    method.observe(site, step, slot, q, mass)
    if stage is not None and fits:
        slot.append(k, v)
    elif stage is not None:
        slot.absorb(stage, [range(n)] if step.last else method.survivors(site, step, slot, n + own))
    return out


# -- attention without a cache: masked models by default, and training and teacher forcing in one pass --------------------
@dataclass
class Uncached(Method):
    """All tokens pass at once and each sees those before it. Keeps nothing; differentiable."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.size(1) // k.size(1)
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Blockwise(Method):
    """All scales pass at once: tokens see their own scale and all earlier ones. ``sizes``: tokens of each scale. Keeps nothing;
    differentiable."""

    def __init__(self, sizes: Sequence[int], device: torch.device | str = "cpu") -> None:
        scale = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
        self.mask = (scale[:, None] >= scale[None]).to(device)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


@dataclass
class Bidirectional(Method):
    """Every token of a pass sees every token of it. No slots; differentiable; serves training as it is."""

    paradigms = ("masked",)
    live_bytes = None  # a method that keeps anything here has a place for every token from the first pass on

    def graph_key(self, step: Step) -> None:
        """Nothing: the passes of the head are told by their inner step."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)
