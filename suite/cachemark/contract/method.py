"""A cache method: an argument of ``generate``, called at nested scopes of the forward pass.

A method overrides the innermost scope that suffices: ``evict`` < ``observe`` < ``attend`` < ``block`` < ``stack``. It is made
anew for each generation; its dataclass fields are its knobs; it never refers to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.attention import KERNEL, MASS_KERNEL, attention
from ..cache.layout import Site, Step, Tokens
from ..cache.masked_layout import MaskedStep
from ..cache.slot import Slot
from ..core import registry
from .paper_costs import PaperCosts
from .scale_pass import ScalePass


class Block(Protocol):
    """The parts of a transformer block, as a method may call them."""

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        """Attention with its gate and residual."""

    def branch(self, tokens: Tokens) -> Tensor:
        """The MLP alone, (rows, tokens, width)."""

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        """Gate and residual of the MLP."""


@dataclass
class Method(PaperCosts, ScalePass):
    """The scopes of a pass, outermost first; the default behaviour of each is the full cache.

    The other sides of a method stand in files of their own, each to be opened only by the author who overrides something there:
    :class:`~.planning.Planning` (knobs and budgets), :class:`~.storage.Storage` (slots and eviction), :class:`~.scale_pass.ScalePass`
    (next-scale models) and :class:`~.paper_costs.PaperCosts` (FLOPs and bytes before anything runs).
    """

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
        """Name of the attention kernel; a speed-up between two kernels is refused."""
        return MASS_KERNEL if self.needs_mass else KERNEL

    @property
    def capturable(self) -> bool:
        """True if what runs in a step can be recorded as a graph: no host read, no shape that depends on values."""
        return True

    def graph_key(self, step: Step) -> Hashable:
        """The part of ``step`` that the scopes of a pass read on the host, beside live lengths and whether visual tokens are fed. A
        recorded pass is repeated only where it is the same. A class that overrides a scope and not this is taken to read everything."""
        return None


registry.methods.base = Method


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
