"""Evicting equals masking: an oracle that keeps every entry and masks the evicted ones.

It follows the method: at each step and site it receives the same queries, keys and values, stores them with the same codec in its
own memory, and computes a plain fp64 softmax under a mask. It reads from ``slot.visual`` before the step which visual tokens the
method has; it never reads where the method stores a key or a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import RowRun, Site, Step
from ..cache.ragged import Extent
from ..cache.slot import Slot
from ..contract.heads import HeadGroups, PerHead
from ..contract.method import Method
from ..methods.base.head_aware import HeadAware
from .driver import Onlooker, tokens_by_head

TOLERANCE = 1e-5  # outputs of attention
ATTENTION = ("attend", "attend_scale")  # the scopes that compute attention
Part = tuple[slice, int, Tensor, Tensor, Tensor]  # rows, tokens of a step, keys, values, and the mask of visible keys


def computes_attention(method: Method) -> bool:
    """Return whether a resolved method computes attention by itself.

    Then its outputs may differ from the full cache's in the last bits. It overrides a scope that attends outside this package, or assigns
    heads to methods with different kernels.
    """
    parts = [group.method for group in method.groups] if isinstance(method, HeadGroups) else []
    owners = [next(cls for cls in type(part).__mro__ if name in vars(cls)) for part in (method, *parts) for name in ATTENTION]
    return len({part.needs_mass for part in parts}) > 1 or not all(cls.__module__.startswith("cachemark.") for cls in owners)


class Difference(NamedTuple):
    """The first wrong number of an output, with its position."""

    step: int
    layer: int
    row: int
    head: int
    expected: float
    actual: float


def first_difference(expected: Tensor, actual: Tensor, step: int, site: Site, tolerance: float) -> Difference | None:
    """Return the first difference above ``tolerance``, or NaN, of (rows, heads, tokens, head_dim)."""
    wrong = ~((expected - actual).abs() <= tolerance) & ~((expected == actual) | (expected.isnan() & actual.isnan()))
    if not bool(wrong.any()):
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return Difference(step, site.layer, at[0], at[1], float(expected[at]), float(actual[at]))


class Shadow(Onlooker):
    """The oracle.

    ``worst`` is the largest deviation of the method's outputs, ``largest`` the oracle's largest output, ``hidden`` the number of masked
    entries, and ``first`` the first deviation above ``TOLERANCE``.
    """

    def __init__(self) -> None:
        self.worst, self.largest, self.hidden = 0.0, 0.0, 0
        self.first: Difference | None = None
        self._full: Method | None = None
        self._rounded: dict[Site, tuple[Tensor, Tensor]] = {}
        self._stored: list[Tensor] = []
        self._chosen: dict[int, Tensor] = {}
        self._selected: Tensor | None = None
        self._followed: list[SlotBank] = []

    def before(self, method: Method, site: Site, step: Step) -> None:
        if step.count:
            self._stored = stored_before(method, site, step)
        elif self._full is None:
            self._full = Method()
            sites = dict.fromkeys(Site(place.stack, place.layer) for place in method.slots)
            self._full.begin(method.layout, list(sites), Memory("cpu", method.banks[0].codec))
        if method.selects:
            self._selected = None
            method.selection = self._selecting(method)  # type: ignore[method-assign]
        for bank in [] if isinstance(method, HeadGroups) else method.banks:
            if bank not in self._followed:
                self._followed.append(bank)
                bank.merge = self._merging(bank)  # type: ignore[method-assign]
        if isinstance(method, HeadAware):
            self._chosen.clear()
            method.chosen = self._recording(method)  # type: ignore[method-assign]

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        read = self._read_scale if method.layout.scales else self._read_tokens
        for rows, tokens, keys, values, mask in read(method, site, step, k, v):
            expected, answer = masked(q[rows, :, :tokens], keys, values, mask), out[rows, :, :tokens].double()
            self.largest = max(self.largest, float(expected.abs().max()))
            self.worst = max(self.worst, float((expected - answer).abs().max()))
            self.first = self.first or first_difference(expected, answer, step.index, site, TOLERANCE)

    def after_end(self, method: Method, step: Step) -> None:
        if self._full is not None:
            self._full.end_step(step)

    def _read_tokens(self, method: Method, site: Site, step: Step, k: Tensor, v: Tensor) -> Iterator[Part]:
        """Yield rows with conditions of one length; a step reads its own keys as the codec stores them."""
        assert self._full is not None
        slot = self._full.slots[site]
        slot.append(k, v, condition=step.count == 0)
        for number, (run, n) in enumerate(zip(slot.bank.runs, slot.live, strict=True)):
            tokens = step.count or run.condition  # queries after a shorter condition are padding
            mask = torch.ones(tokens, n, dtype=torch.bool).tril()[None, None]
            if step.count:
                mask = _beside_own(self._stored[number], step.count)
                if self._selected is not None:
                    mask &= selected_mask(self._selected[run.rows], method.slots[site], run, step, n)
                self.hidden += int((~mask).sum())
                mask = mask[:, :, None]
            yield run.rows, tokens, *slot.read(run, n), mask

    def _read_scale(self, method: Method, site: Site, step: Step, k: Tensor, v: Tensor) -> Iterator[Part]:
        """Yield all rows; a scale reads its own keys exactly, before the codec rounds them."""
        codec = method.ragged[site].codec if isinstance(method, PerHead) else method.slots[site].bank.codec
        before = self._rounded.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        mask = _beside_own(self._stored[0], step.count) & visible_scales(method, step)
        for head, tokens in self._chosen.items():
            mask[:, head] = torch.zeros_like(mask[:, head]).scatter_(-1, tokens, True)
        self.hidden += int((~mask).sum())
        yield slice(None), step.count, keys, values, mask[:, :, None]
        rounded = (codec.decode(codec.encode(part), method.layout.dtype) for part in (k, v))
        self._rounded[site] = tuple(torch.cat(pair, 2) for pair in zip(before, rounded, strict=True))  # type: ignore[assignment]

    def _selecting(self, method: Method) -> Callable[..., Tensor]:
        """Return the method's ``selection``, wrapped to record its results."""
        def selection(site: Site, step: Step, slot: Slot, q: Tensor) -> Tensor:
            self._selected = type(method).selection(method, site, step, slot, q)
            return self._selected
        return selection

    def _merging(self, bank: SlotBank) -> Callable[..., None]:
        """Return ``merge`` of a bank, which also merges the entries of the same tokens here."""
        def merge(places: Tensor, into: Tensor, weights: Tensor, own: Tensor | None = None, *, keys: bool = False) -> None:
            type(bank).merge(bank, places, into, weights, own, keys=keys)
            assert self._full is not None
            leaving, receiving = tokens_at(bank, places), tokens_at(bank, into)
            for number, site in enumerate(bank.sites):
                slot, codec = self._full.slots[site], bank.codec
                for parts in (slot.v, slot.k) if keys else (slot.v,):
                    vectors = codec.decode(parts, bank.layout.dtype)
                    old, added = (vectors.gather(2, at[number, ..., None].expand(-1, -1, -1, vectors.size(-1)))
                                  for at in (receiving, leaving))
                    new = (1 if own is None else own[number, ..., None]) * old + weights[number] @ added
                    for part, codes in zip(parts, codec.encode(new), strict=True):
                        part.scatter_(2, receiving[number, ..., None].expand(-1, -1, -1, part.size(-1)), codes)
        return merge

    def _recording(self, method: HeadAware) -> Callable[..., Any]:
        """Return ``chosen`` of the method, which also records the tokens of heads that do not see all entries."""
        def chosen(site: Site, step: Step, part: Extent, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
            visible, attended = type(method).chosen(method, site, step, part, q)
            if visible is not None:
                tokens = part.view(method.shown.visual).long().gather(2, visible)
                self._chosen |= {part.first + at: tokens[:, at] for at in range(part.heads)}
            return visible, attended
        return chosen


def _beside_own(entries: Tensor, count: int) -> Tensor:
    return torch.cat((entries, torch.ones(*entries.shape[:2], count, dtype=torch.bool)), -1)


def visible_scales(method: Method, step: Step) -> Tensor:
    """Return which earlier tokens a step may read, (tokens,) bool; an ablation hides a group of scales."""
    groups = [getattr(method, "group", lambda *_: "")(scale, step.index) for scale in range(step.scale)]
    sizes = torch.tensor(method.layout.scale_tokens[: step.scale])
    return torch.tensor([group != getattr(method, "remove", None) for group in groups]).repeat_interleave(sizes)


def stored_before(method: Method, site: Site, step: Step) -> list[Tensor]:
    """Return the stored entries of earlier steps per run of rows, (rows, kv_heads, condition + first)."""
    if isinstance(method, PerHead):
        return [torch.cat([entry_mask(tokens[:, None], 0, step.first) for tokens in tokens_by_head(method.ragged[site])], 1)]
    heads, runs = dict[int, int](), list[list[Tensor]]()
    for place, slot in method.slots.items():
        if (place.stack, place.layer) == (site.stack, site.layer):
            heads |= {head: len(heads) + at for at, head in enumerate(getattr(place, "heads", range(method.layout.kv_heads)))}
            runs.append([entry_mask(slot.visual[run.rows, :, :n], run.condition, step.first)
                         for run, n in zip(slot.bank.runs, slot.live, strict=True)])
    order = [heads[head] for head in sorted(heads)]
    return [torch.cat(parts, 1)[:, order] for parts in zip(*runs, strict=True)]


def selected_mask(selected: Tensor, slot: Slot, run: RowRun, step: Step, entries: int) -> Tensor:
    """Return which ``entries`` a selection reads, (rows, kv_heads, entries) bool."""
    visual = slot.visual[run.rows].long().gather(2, selected + run.condition)
    newest = selected == slot.live_visual - 1  # it has no number before the pass ends
    mask = torch.zeros(*selected.shape[:2], entries, dtype=torch.bool)
    mask[..., : run.condition] = True
    return mask.scatter_(2, torch.where(newest, step.first, visual) + run.condition, True)


def tokens_at(bank: SlotBank, places: Tensor) -> Tensor:
    """Return where the full cache stores the entries at ``places``: after each row's condition, by token."""
    visual, offset = bank.visual.long().gather(3, places), torch.tensor(bank.layout.condition)[:, None, None]
    return torch.where(visual < 0, places, visual + offset)


def entry_mask(visual: Tensor, condition: int, tokens: int) -> Tensor:
    """Return which entries are stored, (rows, kv_heads, condition + tokens) bool.

    ``visual`` (rows, kv_heads, live) is −1 for a condition entry. If a method drops part of the condition, the oldest go.
    """
    mask = torch.zeros(*visual.shape[:2], condition + tokens + 1, dtype=torch.bool)
    mask.scatter_(-1, torch.where(visual < 0, condition + tokens, visual.long() + condition), True)
    dropped = condition - (visual < 0).sum(-1, keepdim=True)
    mask[..., :condition] = torch.arange(condition) >= dropped
    return mask[..., :-1]


def masked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Return plain fp64 attention. ``allowed`` broadcasts to (rows, kv_heads, tokens, keys)."""
    group = q.size(1) // k.size(1)
    allowed = allowed.expand(*k.shape[:2], -1, -1)
    k, v, allowed = (part.repeat_interleave(group, 1) for part in (k, v, allowed))
    scores = (q.double() @ k.double().mT * q.size(-1) ** -0.5).masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1) @ v.double()
