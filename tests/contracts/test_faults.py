"""Faults of storage and of methods that a file of a plug-in cannot show (tests/kit has those) are found by their check of the kit."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Layout, Site, Step
from cachemark.cache.ragged import RaggedSlot
from cachemark.cache.slot import Slot, Workspace
from cachemark.contract.method import Method
from cachemark.kit import batches, checks, ragged
from cachemark.kit.common import MethodCell
from cachemark.kit.next_scale import ScaleCell
from cachemark.kit.next_token import Cell
from cachemark.kit.oracle import TOLERANCE, Shadow
from cachemark.kit.runner import Check
from cachemark.methods.h2o import H2O
from cachemark.methods.registry import METHODS
from cachemark.methods.streaming import Streaming
from cachemark.methods.window import Window

from .scales import Scored, Staggered

Move = Callable[..., None]


# -- entries that move to the wrong place ------------------------------------------------------------------------------
def values_stay(right: Move, self: Any, *arguments: Any) -> None:
    """K moves and V does not."""
    before = [part.clone() for part in self.v]
    right(self, *arguments)
    for part, old in zip(self.v, before, strict=True):
        part.copy_(old)


def tail_beside(right: Move, self: SlotBank, number: int, place: int) -> None:
    """V of the tail lands in the place before the evicted one."""
    n, rows = self.live[number], self.runs[number].rows
    values_stay(right, self, number, place)
    for part in self.v:
        part[:, rows, :, place - 1] = part[:, rows, :, n - 1].clone()


def previous_entry(right: Move, self: Slot, workspace: Workspace, survivors: Any) -> None:
    """The entry before the chosen one survives, under the number of the chosen one."""
    if isinstance(survivors, Tensor):
        moved: Any = (survivors - 1).clamp_min(0)
    else:
        moved = [range(start, start + len(places)) for places in survivors for start in [max(0, places.start - 1)]]
    right(self, workspace, moved)
    live = self.live[0]
    self.visual[:, :, :live] = (self.visual[:, :, :live] + 1).clamp_max(self.bank.layout.visual - 1)


def shifted_workspace(right: Move, self: RaggedSlot, workspace: Any, kept: Any) -> None:
    """Numbers are right, keys and values are of the entry before."""
    workspace.k, workspace.v = workspace.k.roll(1, 1), workspace.v.roll(1, 1)
    right(self, workspace, kept)


MOVES: list[tuple[type, str, Move, str]] = [
    (SlotBank, "_fill", values_stay, "h2o"), (SlotBank, "_fill", values_stay, "linear"), (SlotBank, "evict_place", tail_beside, "window"),
    (Slot, "absorb", values_stay, "window"), (Slot, "absorb", previous_entry, "h2o"), (Slot, "absorb", previous_entry, "ams_kv"),
    (RaggedSlot, "absorb", values_stay, "staggered"), (RaggedSlot, "absorb", shifted_workspace, "scored"),
]


@pytest.mark.parametrize(("owner", "function", "broken", "name"), MOVES)
def test_a_wrong_move_is_found_by_the_oracle(owner: type, function: str, broken: Move, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by the oracle alone: at full budget nothing moves."""
    cls: type[Method] = {"staggered": Staggered, "scored": Scored}.get(name) or METHODS.get(name)
    mode = (("demanding", [1]),) if name == "ams_kv" else ()
    cell: MethodCell = Cell(cls, mode, "native", "mha") if owner is SlotBank else ScaleCell(cls, mode, "native", "mha")
    right = getattr(owner, function)
    monkeypatch.setattr(owner, function, lambda self, *arguments: broken(right, self, *arguments))
    shadow = Shadow()
    try:
        cell.run(cell.tight(), shadow, bare=True)
    except (RuntimeError, IndexError):
        assert owner is not SlotBank
        return  # the numbers of entries no longer fit
    assert shadow.worst > TOLERANCE
    if owner is SlotBank:
        assert not list(checks.neutral_is_full(cell))


# -- broken methods ----------------------------------------------------------------------------------------------------
def derived(base: type[Method], **attributes: Any) -> type[Method]:
    return type("Derived", (base,), attributes)


replaced = derived(H2O, build=classmethod(  # becomes the full cache where the budget is large enough
    lambda cls, parameters: Method() if parameters["B"] >= 36 else Method.build.__func__(cls, parameters)))
skips = derived(H2O, observe=lambda self, *seen: H2O.observe(self, *seen) if self.B < 36 else None)  # where it evicts nothing
declares = derived(Streaming, capacity=lambda *of: Streaming.capacity(*of) + 4)
HeadsDeclare = derived(Staggered, entries=lambda *of: Staggered.entries(*of) + 1)


class Padded(Method):
    """Attends to one dead entry under an additive mask, as a padded buffer does."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slot = self.slots[site]
        slot.append(k, v, condition=step.count == 0)
        n = slot.live[0]
        k, v = slot.k[0][:, :, : n + 1], slot.v[0][:, :, : n + 1]
        bias = torch.zeros(k.size(2)).masked_fill(torch.arange(k.size(2)) >= n, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


class ReadsBeyond(Window):
    def attend_scale(self, step: Step, q: Tensor, slot: Slot, workspace: Workspace | None) -> tuple[Tensor, Tensor | None]:
        too_many = workspace is not None and slot.live[0] > 0
        k, v = (slot if workspace is None else workspace).read(slot.bank.runs[0], slot.live[0] + too_many)
        return F.scaled_dot_product_attention(q, k, v), None


class HeadReadsBeyond(HeadsDeclare):  # type: ignore[misc, valid-type]
    """In the last step one head reads an entry that no head stores."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.ragged[site].lengths[-1] += step.last
        return super().attend(site, step, q, k, v)


class FromTheFirstRow(Streaming):
    """Takes the first row's condition for that of all rows."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            slots.evict(torch.full((*slots.visual.shape[:3], 1), slots.runs[0].condition))


class ByRow(Streaming):
    """Evicts by the row's place in the batch."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            rows = torch.arange(slots.layout.rows)[:, None, None] % (self.B - 1)
            slots.evict(1 + rows.expand(len(slots.sites), -1, slots.layout.kv_heads, 1))


class Misfolded(Method):
    """Attention of its own whose queries meet the K/V heads in turns instead of in groups."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = k.size(1)
        mixed = q.unflatten(1, (-1, heads)).transpose(1, 2).flatten(1, 2)
        return super().attend(site, step, mixed, k, v).unflatten(1, (heads, -1)).transpose(1, 2).flatten(1, 2)


def observing(observe: Callable[[Any, Step, Tensor], object], base: type[Method] = Streaming, **attributes: object) -> type[Method]:
    """Return a method that runs ``observe(method, step, q)`` after attention."""

    def run(self: Method, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if step.count:
            observe(self, step, q)

    return derived(base, observe=run, name="observing", **attributes)


def begin(self: Method, layout: Layout, sites: Sequence[Site], memory: Any) -> None:
    Method.begin(self, layout, sites, memory)
    self.kept: Any = torch.ones(layout.head_dim)
    self.counts: dict[int, int] = {}


HOST = checks.nothing_is_read_on_the_host
FAULTS: list[tuple[type[Method], Check, str]] = [  # words of the finding
    *((cls, checks.neutral_is_no_special_case, "") for cls in (replaced, skips)),
    (declares, checks.declared_is_used, ""), (Padded, checks.dead_is_never_read, "nan"),
    (ReadsBeyond, checks.dead_is_never_read, "nan"), (HeadReadsBeyond, checks.dead_is_never_read, "nan"),
    (HeadsDeclare, checks.declared_is_used, ""),
    (Misfolded, checks.evicting_is_masking, ""),
    (FromTheFirstRow, ragged.rows_equal_single_rows, ""), (ByRow, batches.samples_are_the_same_in_any_batch, "other entries kept"),
    (observing(lambda self, step, q: q.amax().tolist()), HOST, "reads a tensor"),
    (observing(lambda self, step, q: bool(q.amax() > 0)), HOST, "reads a tensor"),
    (observing(lambda self, step, q: q[q > 0]), HOST, "boolean"), (observing(lambda self, step, q: (q > 0).nonzero()), HOST, "nonzero"),
    (observing(lambda self, step, q: q.amax().item(), Method), checks.graph_is_eager, "reads a tensor"),
    (observing(lambda self, step, q: q.mul_(torch.tensor([1.0] * q.size(-1))), Method), checks.graph_is_eager, "numbers of the host"),
    (observing(lambda self, step, q: q.mul_(self.kept), Method, begin=begin), checks.graph_is_eager, "this generation only"),
    (observing(lambda self, step, q: self.counts.update(a=step.index), Method, begin=begin), checks.graph_is_eager, "changes counts"),
]


@pytest.mark.parametrize(("cls", "check", "words"), FAULTS)
def test_a_broken_method_is_found_by_its_check(cls: type[Method], check: Check, words: str) -> None:
    scales = issubclass(cls, ReadsBeyond | Staggered)
    attention = "gqa" if cls is Misfolded else "mha"
    findings = list(check(ScaleCell(cls, (), "native", attention) if scales else Cell(cls, (), "native", attention)))
    assert findings
    assert words in findings[0].actual
    if check is checks.neutral_is_no_special_case:
        assert not list(checks.neutral_is_full(Cell(cls, (), "native", "mha"))), "its tokens are right"
