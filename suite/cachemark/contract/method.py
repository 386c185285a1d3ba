"""A cache method: an argument of ``generate``, called at nested scopes of the forward pass.

A method overrides the innermost scope that suffices: ``evict`` < ``observe`` < ``attend`` < ``block`` < ``stack``. It is made
anew for each generation; its dataclass fields are its knobs; it never refers to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.attention.attention import KERNEL, attention
from ..cache.attention.mass import MASS_KERNEL
from ..cache.layout import Layout, Site, Step, Tokens
from ..cache.slot import Memory, Slot, SlotBank, Stage
from ..core.errors import BadBudget, BadKnob, unknown

if TYPE_CHECKING:
    from ..cache.masked_layout import Load, MaskedStep


class Block(Protocol):
    """What a transformer block offers to a method."""

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        """Attention with its gate and residual."""

    def branch(self, tokens: Tokens) -> Tensor:
        """The MLP alone, (rows, tokens, width)."""

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        """Gate and residual of the MLP."""


class MethodOverhead(NamedTuple):
    """What a method does beside the model: multiplications of matrix ``products``, and ``numbers`` of the layout's dtype that it reads
    and writes (entries that it moves, keys that it scores)."""

    products: int = 0
    numbers: int = 0


@dataclass
class Method:
    """The default behaviour of every scope is the full cache.

    Class attributes: ``paradigms`` it runs on; ``sizes`` are knobs that, given by a plan, stand in place
    of its budget; ``evict_after`` at which ``evict`` is called (``token``, ``line`` or none);
    ``evicts`` and ``skips`` say which contract tests apply; ``slack`` is how many entries above its budget a slot may hold
    during a pass; ``source`` names paper and section; ``unstated`` are the knobs whose default the paper does not state, or states
    otherwise, each with where the default comes from.
    """

    name: ClassVar[str] = ""
    paradigms: ClassVar[tuple[str, ...]] = ("next-token",)
    sizes: ClassVar[tuple[str, ...]] = ()
    evict_after: ClassVar[str] = ""
    evicts: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    source: ClassVar[str] = ""
    unstated: ClassVar[Mapping[str, str]] = {}
    footnotes: ClassVar[tuple[str, ...]] = ()

    # -- what a plan asks ---------------------------------------------------------------------------------------------
    @classmethod
    def knobs_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Knobs that meet ``budget`` (a share of the full cache) on this layout; raises BadBudget where none do."""
        return {}

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """The same, beside the knobs that this instance has: a plan may give some and leave the rest to the budget."""
        return self.knobs_for(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        """The share of the full cache that these knobs are, for a method whose authors state sizes and no budget."""
        raise BadBudget(f"{self.name} has no budget of its own.", remedy="Give a share of the full cache, such as 1/4.")

    @classmethod
    def build(cls, knobs: Mapping[str, Any]) -> Method:
        """An instance with these knobs; an unknown knob or a value of another type is an error that names the nearest."""
        types = {f.name: type(f.default) if f.default is not None else None for f in fields(cls)}
        for knob, value in knobs.items():
            if knob not in types:
                raise unknown(f"knob of {cls.name}", knob, types)
            expected = types[knob]
            wrong = expected is not None and (type(value) is not expected and not (expected is float and type(value) is int))
            if wrong and expected in (int, float, bool, str):
                kind = expected.__name__
                raise BadKnob(f"{cls.name}: {knob} = {value!r} is no {kind}.", remedy=f"Its default is of type {kind}.")
        return cls(**knobs)

    def knobs(self) -> dict[str, Any]:
        """Every knob with its value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def resolve(self, layout: Layout) -> None:
        """Check the knobs against the layout and fill in those that depend on it; raises BadKnob."""

    def passes(self, asked: int) -> int:
        """Masked: how many passes are made where the sampling asks for ``asked``."""
        return asked

    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        """Masked: what a block computes in this pass, where without a cache it computes ``load``. After :meth:`resolve`; FLOPs on
        paper come from it."""
        return load

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Next-token, next-scale: entries that a query of this pass looks at, its own among them. After :meth:`resolve`; bytes on
        paper come from it."""
        return layout.longest_condition + step.first + step.count

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """What this site costs in a pass beside the model itself, for one row. After :meth:`resolve`."""
        return MethodOverhead()

    # -- one generation -----------------------------------------------------------------------------------------------
    @property
    def needs_mass(self) -> bool:
        """True if ``observe`` wants the attention mass of each key, which no fused kernel returns."""
        return False

    @property
    def capturable(self) -> bool:
        """True if what runs in a step can be recorded as a graph: no host read, no shape that depends on values."""
        return True

    @property
    def kernel(self) -> str:
        """Name of the attention kernel; a speed-up between two kernels is refused."""
        return MASS_KERNEL if self.needs_mass else KERNEL

    def capacity(self, layout: Layout, site: Site) -> int:
        """Entries that this site's slot must hold. What no later pass reads is not stored; with 0 there is no slot."""
        return layout.stored

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        """Declare storage for one generation. Everything a method keeps comes from ``memory``."""
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        capacity = {site: entries for site in sites if (entries := self.capacity(layout, site))}
        self.banks: list[SlotBank] = memory.slots(layout, capacity)
        self.slots: dict[Site, Slot] = {site: slot for bank in self.banks for site, slot in zip(bank.sites, bank.slots, strict=True)}
        entries = max([bank.reach for bank in self.banks if bank.reach > bank.capacity or not memory.codec.exact], default=0)
        self.stage: Stage | None = memory.stage(layout, entries) if entries else None
        for bank in self.banks:
            self.prepare(bank, memory)

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate the method's own state for a bank."""

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of every bank's runs of rows: all that the host keeps of what has passed."""
        return tuple(tuple(bank.live) for bank in self.banks)

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for bank, live in zip(self.banks, lengths, strict=True):
            for slot in bank.slots:
                slot.live[:] = live

    def graph_key(self, step: Step) -> Hashable:
        """What of ``step`` the scopes of a pass read on the host, beside live lengths and whether visual tokens are fed. A recorded pass
        is repeated only where it is the same. A class that overrides a scope and not this is taken to read everything."""
        return None

    # -- the scopes, outermost first ----------------------------------------------------------------------------------
    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        """Which rows and tokens are computed at all. A stack ends before its final norm."""
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
            return self._pass_scale(site, step, slot, q, k, v)
        slot.append(k, v, condition=step.count == 0)
        if self.stage is not None:
            self.stage.put(slot)
        out, mass = attention(q, slot, self.stage, mass=self.needs_mass, causal=step.causal)
        self.observe(site, step, slot, q, mass)
        return out

    def _pass_scale(self, site: Site, step: Step, slot: Slot, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A scale that fits is written to the slot and read there. Any other stands in the stage until it is known what of it
        survives; so does every scale under a lossy codec, since a pass sees its own keys as they are. Nobody reads the last scale
        again, so it is kept only where the method has room for everything."""
        n, own = slot.live[0], step.count
        fits = n + own <= self.room(site) and not (step.last and slot.bank.capacity < self.layout.visual)
        stage = None if fits and slot.bank.codec.exact else self.stage
        slot.number(step.first, own)
        if stage is None:
            slot.append(k, v)
        else:
            stage.put(slot, k, v)
        out, mass = self.attend_scale(step, q, slot, stage)
        self.observe(site, step, slot, q, mass)
        if stage is not None and fits:
            slot.append(k, v)
        elif stage is not None:
            slot.absorb(stage, [range(n)] if step.last else self.survivors(site, step, slot, n + own))
        return out

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        """See the queries and, if ``needs_mass``, the attention mass of each live key (rows, kv_heads, live)."""

    def room(self, site: Site) -> int:
        """Next-scale: entries that this site may hold now, at most its capacity."""
        return self.slots[site].bank.capacity

    def attend_scale(self, step: Step, q: Tensor, slot: Slot, stage: Stage | None) -> tuple[Tensor, Tensor | None]:
        """Next-scale: attend to [live | the scale's own], which stand in the stage where one is given."""
        return attention(q, slot, stage, mass=self.needs_mass)

    def survivors(self, site: Site, step: Step, slot: Slot, seen: int) -> Sequence[range] | Tensor:
        """Next-scale: which of the ``seen`` entries [live | the scale's own] stay where they do not all fit; see
        :meth:`Slot.absorb`. By default those that were there before."""
        return [range(slot.live[0])]

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Drop entries at the method's ``evict_after``, for all sites of a bank at once."""

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values, all sites together, at the fullest pass."""
        return sum(bank.logical_bytes for bank in self.banks)

    @property
    def live_bytes(self) -> int | None:
        """Bytes of keys and values that live now, all sites together; None where a method fills places that stand from the beginning, so
        that there is no number of live ones."""
        return sum(bank.live_bytes for bank in self.banks)

    def end_step(self, step: Step) -> None:
        """Close a pass: number what it wrote, then evict where the method's edge is complete. Called by the engine."""
        for bank in self.banks:
            bank.end_step(step)
            if self.evict_after in step.edges:
                self.evict(step, bank)


SCOPES = ("stack", "block", "attend", "observe")


def graph_key(method: Method, step: Step) -> Hashable:
    """:meth:`Method.graph_key` where the class that overrides a scope says it too, else the pass itself."""
    for cls in type(method).__mro__:
        if "graph_key" in vars(cls):
            return method.graph_key(step)
        if any(scope in vars(cls) for scope in SCOPES):
            break
    return "pass", step.index


def visual_budget(budget: Fraction, layout: Layout) -> int:
    """Visual entries per row, layer and head that a budget allows: B = n·max(2, round(ratio·lines)) with lines of n tokens;
    with scales the share of what the full cache keeps, rounded down."""
    if layout.scales:
        return max(1, int(budget * layout.cacheable))
    return layout.line * max(2, round(budget * layout.lines))


@dataclass
class Evicting(Method):
    """A method that keeps at most ``B`` visual entries per row, layer and head; the condition is kept beside."""

    evicts: ClassVar[bool] = True

    B: int = 0

    @classmethod
    def knobs_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"B": visual_budget(budget, layout)}

    def resolve(self, layout: Layout) -> None:
        if self.B < 1:
            raise BadKnob(f"{self.name}: B = {self.B} keeps nothing.", remedy=f"Give 1 … {layout.visual} visual entries.")

    def capacity(self, layout: Layout, site: Site) -> int:
        slack = 0 if layout.scales else self.slack
        return layout.longest_condition + min(self.B + slack, layout.cacheable)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Up to ``B`` from earlier passes, and its own; at a line's end as many fewer as a line has."""
        return layout.longest_condition + self.held(layout, step) + step.count

    def held(self, layout: Layout, step: Step) -> int:
        """Visual entries that are left from earlier passes."""
        if self.evict_after != "line" or step.first < self.B:
            return min(step.first, self.B)
        return self.B - layout.line + (step.first - self.B) % layout.line

    def evicted(self, layout: Layout, step: Step) -> int:
        """Entries that go at the edge behind this pass."""
        full = step.count and self.held(layout, step) + step.count >= self.B
        if layout.scales or self.evict_after not in step.edges or not full:
            return 0
        if self.evict_after == "line":
            return layout.line if step.line < layout.lines else 0
        return max(0, self.held(layout, step) + step.count - self.B)

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """As many entries as are evicted are moved into their places."""
        return MethodOverhead(0, 4 * self.evicted(layout, step) * layout.kv_heads * layout.head_dim)


def ring(memory: Memory, slots: SlotBank, entries: int) -> Tensor:
    """State for the latest ``entries`` queries of each site: (sites, rows, heads, entries, head_dim)."""
    layout = slots.layout
    shape = (len(slots.sites), layout.rows, layout.heads, entries, layout.head_dim)
    return memory.zeros(f"queries.{slots.sites[0]}", shape, layout.dtype)


def table(memory: Memory, slots: SlotBank, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """State with one number per entry that moves with it: (sites, rows, kv_heads, reach)."""
    shape = (len(slots.sites), slots.layout.rows, slots.layout.kv_heads, slots.reach)
    return slots.follow(memory.zeros(f"{name}.{slots.sites[0]}", shape, dtype))
