"""Cache methods: an argument of ``generate``, called at nested scopes of the forward pass.

A method overrides the innermost scope that suffices: ``evict`` < ``observe`` < ``attend`` < ``block`` < ``stack``. Each generation has a
new instance. Dataclass fields are parameters. A method never refers to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import attend, attention
from ..cache.bank import SlotBank
from ..cache.grouped_keys import banks
from ..cache.kernels.fused import Turn, rotate_append
from ..cache.kernels.plain import SDPA, WRITTEN_OUT
from ..cache.kernels.record import Entries
from ..cache.kernels.table import attend_turned
from ..cache.layout import EDGES, HeadSite, Layout, Site, Step, Tokens
from ..cache.masked_layout import MaskedStep
from ..cache.slot import Slot, Workspace
from ..core.errors import BadPlugin
from .block import Block
from .planning import Planning


@dataclass
class Method(Planning):
    """The scopes of a forward pass, outermost first; by default each behaves as the full cache.

    :class:`~.planning.Planning` has the part that plans need before anything runs. Class attributes: ``evict_after``: ``evict`` is called
    after each ``token`` or ``line``, or never (empty); ``evicts`` and ``skips`` select the contract tests; ``slack`` is how many entries
    above its budget a layer cache may have during a pass; ``selects``: :meth:`selection` chooses the entries that a pass reads; ``merges``:
    evicted entries are added to others by ``SlotBank.merge``; ``fronts``: all entries are kept and attention obeys ``Step.visible``, so
    that passes may feed tokens of several lines. ``spare``, set before :meth:`begin` by :func:`~.decoder.spare`, is how many entries above
    its capacity it needs while a decoder looks ahead. ``earlier_bytes``: what a model that ran before and is freed had live at most.
    """

    evict_after: ClassVar[str] = ""
    evicts: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    selects: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    fronts: ClassVar[bool] = False
    spare, earlier_bytes = 0, 0  # not annotated, so that they are no parameters

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """Choose which rows and tokens are computed. A stack ends before its final norm."""
        return run(tokens)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        """Run one block: attention, then the MLP."""
        tokens = block.mix(site, step, tokens, self)
        return block.join(tokens, block.branch(tokens))

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write, attend, observe.

        ``q`` (rows, heads, tokens, head_dim); ``k``, ``v`` with kv_heads; K is after RoPE. Without a layer cache the tokens of the pass
        attend to each other.
        """
        slot = self.slots.get(site)
        if slot is None:
            return attend(q, Entries.of(k, v))[0]
        if step.scale:
            return _pass_scale(self, site, step, slot, q, k, v)
        slot.append(k, v, condition=step.count == 0)
        selected = self._selected(site, step, slot, q) if self.selects and step.count else None
        out, mass = attention(q, slot, mass=self.needs_mass, causal=step.causal, selected=selected, visible=step.visible,
                              buffer=self.workspace)
        self.observe(site, step, slot, q, mass)
        return out

    def place(self, site: Site, tokens: int) -> tuple[Tensor, Tensor] | None:
        """Return where a fused pass may write the next tokens' keys and values before :meth:`attend`, or None.

        A method that attends in its own way gets them as tensors of their own.
        """
        slot = self._own_slot(site)
        return slot.place(tokens) if slot is not None else None

    def _own_slot(self, site: Site) -> Slot | None:
        return self.slots.get(site) if type(self).attend is Method.attend else None

    def attend_turned(self, site: Site, step: Step, qkv: Tensor, turn: Turn) -> Tensor:
        """Rotate queries and keys (rows, tokens, heads + 2·kv_heads, head_dim), then :meth:`attend`; in one kernel where one does all."""
        slot, other = self._own_slot(site), step.scale or self.needs_mass or self.selects or step.visible is not None
        if slot is not None and step.count == qkv.size(1) == 1 and not other and slot.takes(1):
            asked = type(self).observe is not Method.observe
            done = attend_turned(qkv, turn, slot.k[0], slot.v[0], slot.runs, slot.live, asked)
            if done is not None:
                slot.extend(1)
                if done[1] is not None:
                    self.observe(site, step, slot, done[1], None)
                return done[0]
        place = self.place(site, qkv.size(1)) if step.count else None
        return self.attend(site, step, *rotate_append(qkv, turn, place))

    def selection(self, site: Site, step: Step, slot: Slot, q: Tensor) -> Tensor:
        """Return the visual entries that each head reads in this pass, (rows, kv_heads, count) int64.

        Called if the method ``selects``, for a visual token that has just been written; ``q``: (rows, heads, 1, head_dim). Entries are
        distinct and counted from 0 after the condition, which is always read; the newest is ``slot.live_visual - 1``. ``attended`` declares
        how many entries are read. As in Quest (Tang et al. 2024), nothing has to be evicted. Next-token models only.
        """
        return torch.arange(slot.live_visual, device=q.device).expand(q.size(0), self.layout.kv_heads, -1)

    def _selected(self, site: Site, step: Step, slot: Slot, q: Tensor) -> Tensor:
        selected, expected = self.selection(site, step, slot, q), (self.layout.rows, self.layout.kv_heads)
        if selected.shape[:-1] != expected or not 0 < selected.size(-1) <= slot.live_visual or selected.dtype != torch.int64:
            raise BadPlugin(f"{self.name}: selection returns positions of shape {tuple(selected.shape)} and {selected.dtype}.",
                            remedy=f"Return (rows, kv_heads, count) = ({expected[0]}, {expected[1]}, ≤ {slot.live_visual}) in torch.int64.")
        return selected

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        """Read the queries and, with ``needs_mass``, each live key's mass (rows, kv_heads, live)."""

    # -- storage, and eviction at the end of a pass -----------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        """Return the entries that a site needs. What no later pass reads is not stored; 0 allocates nothing."""
        return layout.ending(self.scales(layout)).stored

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        """Allocate storage for one generation, all of it from ``memory``."""
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        if self.evict_after not in ("", *EDGES):
            raise BadPlugin(f"{self.name}: evict_after = {self.evict_after!r} is not an edge.", remedy=f"Use one of {', '.join(EDGES)}.")
        capacity = {site: entries for site in sites if (entries := self.capacity(layout, site))}
        if self.spare:
            capacity = {site: entries + min(self.spare, max(0, layout.stored - entries)) for site, entries in capacity.items()}
        self.layout = layout = layout.ending(self.scales(layout))
        self.banks: list[SlotBank] = banks(layout, capacity, memory)
        self.slots: dict[Site | HeadSite, Slot] = {
            site: slot for bank in self.banks for site, slot in zip(bank.sites, bank.slots, strict=True)}
        entries = max([bank.reach for bank in self.banks if bank.reach > bank.capacity or not memory.codec.exact], default=0)
        self.workspace: Workspace | None = Workspace(layout, entries, memory) if entries else None
        for bank in self.banks:
            self.prepare(bank, memory)
        self._narrow(0)

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate the method's own state for a bank."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Evict entries of all sites of a bank, at the edge ``evict_after``."""

    def end_step(self, step: Step) -> None:
        """Close a pass: number its entries, then evict if the edge ``evict_after`` is complete."""
        for bank in self.banks:
            bank.end_step(step)
            if self.evict_after in step.edges:
                self.evict(step, bank)
        if step.scale and not step.last:
            self._narrow(step.index + 1)

    def _narrow(self, scale: int) -> None:
        """Drop the entries of rows that are not computed from ``scale`` on."""
        if self.layout.scales and (rows := self.computed_rows(self.layout, scale)) < self.layout.rows:
            for bank in self.banks:
                for slot in bank.slots:
                    slot.narrow(rows)

    def horizon(self, first: int) -> int:
        """Return how many tokens, starting at ``first``, can be fed before the method may evict.

        A parallel decoder accepts at most this many tokens per pass. The method's state must not depend on the tokens that are rejected.
        Call :func:`~.decoder.horizon`.
        """
        return 1

    def beyond(self, first: int) -> int:
        """Return how many tokens can be fed beyond the :meth:`horizon` in one pass, to be discarded after it.

        The method's state must be the same without the last ``step.beyond`` tokens of a pass. Call :func:`~.decoder.beyond`.
        """
        return 0

    def roll_back(self, count: int) -> None:
        """Remove the last ``count`` tokens of the pass that has just run, before :meth:`end_step`."""
        for bank in self.banks:
            bank.roll_back(count)

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of each bank's runs of rows: all host state of a generation."""
        return tuple(tuple(bank.live) for bank in self.banks)

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for bank, live in zip(self.banks, lengths, strict=True):
            for slot in bank.slots:
                slot.live[:] = live

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values of all sites at the fullest pass."""
        return max(self.earlier_bytes, sum(bank.logical_bytes for bank in self.banks))

    @property
    def peak_live_bytes(self) -> int | None:
        """Peak bytes of live keys and values between two layers of a pass, or None if unknown."""
        return None

    @property
    def live_bytes(self) -> int | None:
        """Bytes of the keys and values that are live now; None where positions are fixed."""
        return sum(bank.live_bytes for bank in self.banks)

    # -- next-scale models: a pass writes a whole scale, and only some of its entries may survive -------------------------
    def room(self, site: Site) -> int:
        """Return how many entries a site may have now, at most its capacity."""
        return self.slots[site].bank.capacity

    def positions(self) -> Tensor | None:
        """Return which tokens of the scale are attending, (rows, m) ascending; None for all."""
        return None

    def attend_scale(self, step: Step, q: Tensor, slot: Slot, workspace: Workspace | None) -> tuple[Tensor, Tensor | None]:
        """Attend to [live | own] of a scale, in the workspace if given; return output and mass."""
        return attention(q, slot, workspace, mass=self.needs_mass)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Sequence[range] | Tensor:
        """Return the positions of the ``total`` entries [live | own] to keep when they do not all fit.

        By default those that were live before. See :meth:`Slot.absorb`.
        """
        return [range(slot.live[0])]

    def observe_raw(self, site: Site, step: Step, q: Tensor) -> None:
        """Read the queries before bias, norm, scale and rotation, before ``attend``.

        ``q``: (rows, heads, tokens, head_dim).
        """

    @property
    def needs_raw_queries(self) -> bool:
        """True if ``observe_raw`` needs the queries, which costs a copy."""
        return False

    @property
    def needs_mass(self) -> bool:
        """True if ``observe`` needs the attention mass of each key, which no fused kernel returns."""
        return False

    # -- tokens of each pass of a masked model ------------------------------------------------------------------------
    def ordered(self, order: Tensor) -> Tensor:
        """Return the positions (rows, N) of a masked model in reverse order of prediction.

        ``order``: the sample's own random order.
        """
        return order

    def ranked(self, step: MaskedStep, z: Tensor) -> Tensor:
        """Return the tokens (batch, count) in the order that assigns them to the parts of :meth:`denoising`.

        Called if it has several parts. ``z`` (batch, count, width): input of the diffusion head, conditional rows only.
        """
        return torch.arange(z.size(1), device=z.device).expand(z.shape[:2])

    # -- how a pass may be run ----------------------------------------------------------------------------------------
    @property
    def kernel(self) -> str:
        """Name of the kernel of plain operations; on a device, the table may have a faster one.

        Speedups are only stated between equal kernels.
        """
        return (WRITTEN_OUT if self.needs_mass else SDPA).name

    @property
    def capturable(self) -> bool:
        """True if a step can be captured as a graph: no host read, no shape that depends on values."""
        return True

    def graph_key(self, step: Step) -> Hashable:
        """Return the values of ``step`` that the scopes of a pass read on the host besides live lengths.

        A captured pass is replayed only for an equal key. A class that overrides a scope but not this is assumed to read everything.
        """
        return None


def run_blocks(sites: Sequence[Site], blocks: Iterable[Any], step: Step, method: Method, tokens: Tokens) -> Tokens:
    """Run the blocks of a stack one after the other, one per site."""
    for site, block in zip(sites, blocks, strict=True):
        tokens = method.block(site, step, tokens, block)
    return tokens


COUNTED = ("logical_bytes", "peak_live_bytes", "live_bytes")  # which a plug-in cannot override
SCOPES = ("stack", "block", "attend", "observe", "selection")


def still_true(name: str, method: Method, deciding: Sequence[str]) -> bool:
    """Return whether no class derived from the definition of ``name`` overrides a method of ``deciding``."""
    for cls in type(method).__mro__:
        if name in vars(cls):
            return True
        if any(other in vars(cls) for other in deciding):
            return False
    return False


def graph_key(method: Method, step: Step) -> Hashable:
    """Return :meth:`Method.graph_key`, or the pass if a derived class overrides only a scope."""
    return method.graph_key(step) if still_true("graph_key", method, SCOPES) else ("pass", step.index)


def _pass_scale(method: Method, site: Site, step: Step, slot: Slot, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to a scale, then keep the surviving entries.

    A scale that fits is written to the layer cache and read there. Otherwise, and always with a lossy codec (a pass sees its own keys
    exactly), it is placed in the workspace until its survivors are known. The last scale is stored only if everything fits, since no later
    pass reads it.
    """
    n, own = slot.live[0], k.size(2)
    fits = n + own <= method.room(site) and not (step.last and slot.bank.capacity < method.layout.visual)
    workspace = None if fits and slot.bank.codec.exact else method.workspace
    slot.number(step.first, own, method.positions())
    if workspace is None:
        slot.append(k, v)
    else:
        workspace.put(slot, k, v)
    out, mass = method.attend_scale(step, q, slot, workspace)
    method.observe(site, step, slot, q, mass)
    if workspace is not None and fits:
        slot.append(k, v)
    elif workspace is not None:
        slot.absorb(workspace, [range(n)] if step.last else method.survivors(site, step, slot, n + own))
    return out


# -- attention without a cache: masked models by default, and training and teacher forcing in one pass --------------------
@dataclass
class Uncached(Method):
    """Causal attention over all tokens in one pass. Stores nothing; differentiable."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.size(1) // k.size(1)
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Blockwise(Method):
    """Attention of all scales in one pass; tokens see their own scale and all earlier ones.

    ``sizes``: tokens of each scale. Stores nothing; differentiable.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device | str = "cpu") -> None:
        scale = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
        self.mask = (scale[:, None] >= scale[None]).to(device)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


@dataclass
class Bidirectional(Method):
    """Full attention among the tokens of a pass. Stores nothing; differentiable."""

    paradigms = ("masked",)
    live_bytes = None  # a method that keeps anything here has a place for every token from the first pass on

    def graph_key(self, step: Step) -> None:
        """Return None: the inner step is an input of the head's passes."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, Entries.of(k, v))[0]
