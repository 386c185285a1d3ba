"""Keys with ranges shared by 32 consecutive tokens: an entry finds its range wherever it is moved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import GROUP, KIVI4
from cachemark.cache.grouped_keys import GroupedBank, banks
from cachemark.cache.layout import Layout, Site, raster_steps
from cachemark.kit.driver import layout_of

HEADS, DIM, SITES = 2, 4, (Site("decoder", 0), Site("decoder", 1))


def layout(condition: tuple[int, ...] = (1,)) -> Layout:
    return layout_of(condition, lines=8, line=10, heads=HEADS, kv_heads=HEADS, head_dim=DIM)


def vectors(shape: Layout, seed: int = 0) -> Tensor:
    """Return keys (sites, rows, kv_heads, tokens, head_dim), one channel 100 times as large."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.1, 1.0, 3.0, 10.0])
    return torch.randn(len(SITES), shape.rows, HEADS, shape.longest_condition + shape.visual, DIM, generator=draw) * sizes


def rounded(k: Tensor) -> Tensor:
    """The formula of the paper, in fp64 with an exact range: ``k`` (…, 32, head_dim)."""
    least, most = k.double().amin(-2, keepdim=True), k.double().amax(-2, keepdim=True)
    step = (most - least) / 15
    return least + ((k.double() - least) / step).round() * step


def filled(shape: Layout, k: Tensor, until: int, drop: dict[int, int] | None = None) -> GroupedBank:
    """Return a bank after ``until`` passes, some of which evict one position everywhere."""
    (bank,) = banks(shape, dict.fromkeys(SITES, shape.longest_condition + shape.visual), Memory("cpu", KIVI4))
    assert isinstance(bank, GroupedBank)
    longest = shape.longest_condition
    for step in raster_steps(shape)[:until]:
        for index, slot in enumerate(bank.slots):
            fed = k[index, :, :, :longest]
            if step.count:
                fed = torch.cat([k[index, run.rows, :, run.condition + step.first][:, :, None] for run in bank.runs])
            slot.append(fed, fed, condition=step.count == 0)
        bank.end_step(step)
        for number in range(len(bank.runs)) if drop and step.index in drop else ():
            bank.evict_place(number, drop[step.index] if drop else 0)
    return bank


def test_whole_groups_are_rounded_and_the_last_stands_as_it_is() -> None:
    shape = layout()
    k = vectors(shape)
    for until in (1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP + 5):
        read = filled(shape, k, until).keys()
        rounded_until = until // GROUP * GROUP
        assert torch.equal(read[..., rounded_until:, :], k[..., rounded_until:until, :])
        for first in range(0, rounded_until, GROUP):
            here = slice(first, first + GROUP)
            spread = k[..., here, :].amax(-2, keepdim=True) - k[..., here, :].amin(-2, keepdim=True)
            near = (read[..., here, :] - rounded(k[..., here, :])).abs() <= spread * 1e-3
            assert near.float().mean() > 0.98, "ends in fp16 move few codes"
            assert ((read[..., here, :] - k[..., here, :]).abs() <= spread / 30 * 1.02).all()


@pytest.mark.parametrize("condition", [(1,), (3, 1, 1, 2), (40, 33)])
def test_an_entry_is_read_alike_wherever_eviction_has_moved_it(condition: tuple[int, ...]) -> None:
    geometry = layout(condition)
    k = vectors(geometry)
    drop = {5: 3, 20: 0, GROUP: 1, GROUP + 8: 7, 2 * GROUP: 2, 2 * GROUP + 9: 20}
    evicted, full = filled(geometry, k, 75, drop), filled(geometry, k, 75)
    for number, run in enumerate(evicted.runs):
        n = evicted.live[number]
        assert n == full.live[number] - len(drop)
        arrival = evicted.k[1][:, run.rows, :, :n].long()
        assert arrival.unique().numel() == n
        for index, slot in enumerate(evicted.slots):
            keys, _ = slot.read(run, n)
            expected, _ = full.slots[index].read(run, full.live[number])
            assert torch.equal(keys, expected.gather(2, arrival[index].expand(-1, -1, -1, DIM)))


def test_a_long_condition_fills_groups_of_its_own_rows() -> None:
    shape = layout((GROUP + 3, 2 * GROUP))
    k = vectors(shape)
    bank = filled(shape, k, 1)
    for number, run in enumerate(bank.runs):
        for index, slot in enumerate(bank.slots):
            keys, _ = slot.read(run, bank.live[number])
            fed = k[index, run.rows, :, : run.condition]
            filling = run.condition % GROUP
            assert torch.equal(keys[:, :, run.condition - filling :], fed[:, :, run.condition - filling :])
            assert not torch.equal(keys[:, :, :GROUP], fed[:, :, :GROUP])
            spread = fed[:, :, :GROUP].amax(2, keepdim=True) - fed[:, :, :GROUP].amin(2, keepdim=True)
            assert ((keys[:, :, :GROUP] - fed[:, :, :GROUP]).abs() <= spread / 30 * 1.02).all()


def test_bytes_count_ranges_and_the_group_that_fills() -> None:
    shape, memory = layout(), Memory("cpu", KIVI4)
    banks(shape, dict.fromkeys(SITES, 20), memory)
    groups = -(-(1 + 80) // GROUP)
    entry = (DIM // 2 + 2) + (DIM // 2 + 2 + 2)  # codes and number of a key; codes, step and least of a value
    shared = groups * DIM * 2 * 2 + GROUP * DIM * 4
    assert memory.nbytes("slots") == len(SITES) * HEADS * (20 * entry + shared)
    assert KIVI4.pair_bytes(DIM, torch.float32) == entry
    assert KIVI4.shared_bytes(DIM, torch.float32, 81) == shared
