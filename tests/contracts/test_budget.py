"""The budget is kept at every step, and what is allocated is what was declared."""

from __future__ import annotations

import pytest
import torch

from cachemark.cache.bank import SlotBank
from cachemark.methods.base.evicting import Evicting

from .cells import Cell, Recorded, cells, generate, halved, recorded

EVICTING = cells(evicting=True)


def keeps_condition(ran: Recorded) -> bool:
    return getattr(ran.method, "keep_condition", True)


def limit(ran: Recorded) -> int:
    """Entries that may live: B beside the condition, or B in all where the condition counts."""
    assert isinstance(ran.method, Evicting)
    return ran.method.B + (ran.method.layout.longest_condition if keeps_condition(ran) else 0)


@pytest.mark.parametrize("cell", halved(EVICTING))
def test_live_entries_stay_within_the_budget(cell: Cell) -> None:
    ran = recorded(cell)
    for moment in ran.moments:
        for site in ran.method.slots:
            assert max(moment.after[site]) <= limit(ran), f"after pass {moment.step.index}"
            assert max(moment.during[site]) <= limit(ran) + ran.method.slack, f"during pass {moment.step.index}"


@pytest.mark.parametrize("cell", halved(EVICTING))
def test_the_budget_is_used(cell: Cell) -> None:
    """A method that keeps less than it may would look better in bytes than it is told to be."""
    ran = recorded(cell)
    assert max(n for moment in ran.moments for live in moment.during.values() for n in live) == limit(ran) + ran.method.slack


@pytest.mark.parametrize("cell", halved(EVICTING))
def test_the_live_prefix_holds_what_it_should(cell: Cell) -> None:
    ran = recorded(cell)
    for moment in ran.moments:
        for held in moment.held.values():
            ordered = held.long().sort(-1).values
            repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
            assert not repeated.any(), f"a token twice after pass {moment.step.index}"
            if keeps_condition(ran):
                assert ((held == -1).sum(-1) == ran.method.layout.condition[0]).all()
            assert held.min() >= -1
            assert held.max() < moment.step.first + max(1, moment.step.count)
            if moment.step.count:
                assert (held == moment.step.first).any(-1).all(), f"token {moment.step.first} has not survived its own pass"


@pytest.mark.parametrize("cell", halved(cells()))
def test_allocated_is_declared(cell: Cell) -> None:
    ran = recorded(cell)
    layout, codec = ran.method.layout, ran.memory.codec
    capacity = {site: ran.method.capacity(layout, site) for site in ran.method.slots}
    vectors = 2 * layout.rows * layout.kv_heads
    assert ran.memory.nbytes("slots") == vectors * sum(capacity.values()) * codec.entry_bytes(layout.head_dim, layout.dtype)
    plain = layout.head_dim * layout.dtype.itemsize
    assert ran.memory.nbytes("stage") == (0 if codec.exact else vectors * max(capacity.values()) * plain)
    everything = layout.longest_condition + layout.visual - 1
    expected = min(limit(ran) + ran.method.slack, everything) if cell.cls.evicts else everything
    assert set(capacity.values()) == {expected}


@pytest.mark.parametrize("cell", halved(cells()))
def test_logical_bytes_are_those_of_the_fullest_pass(cell: Cell) -> None:
    ran = recorded(cell)
    layout = ran.method.layout
    fullest = sum(max(max(moment.during[site]) for moment in ran.moments) for site in ran.method.slots)
    entry = 2 * ran.memory.codec.entry_bytes(layout.head_dim, layout.dtype)
    assert sum(bank.logical_bytes for bank in ran.method.banks) == fullest * layout.rows * layout.kv_heads * entry
    assert sum(bank.logical_bytes for bank in ran.method.banks) <= ran.memory.nbytes("slots")


def test_a_method_that_forgets_to_evict_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nowhere to write: a slot holds its capacity and no more."""
    cell = next(cell for cell in EVICTING if cell.cls.name == "h2o")
    monkeypatch.setattr(SlotBank, "evict", lambda self, places: None)
    with pytest.raises(AssertionError, match="too small a capacity"):
        generate(cell, cell.tight())


def test_state_is_counted() -> None:
    """Every tensor that a method keeps lies in its memory: see test_storage; here, that its bytes are in the sum."""
    for cell in cells():
        ran = recorded(cell)
        kept = [value for value in vars(ran.method).values() if isinstance(value, torch.Tensor)]
        assert ran.memory.nbytes("state") >= sum(tensor.nbytes for tensor in kept)
