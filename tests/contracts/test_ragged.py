"""Rows whose conditions differ in length: each row keeps the rules by itself, as if it were alone."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.method import Method
from cachemark.methods.base.evicting import Evicting

from .cells import ATTENTION, GRID, Cell, cells, label
from .driver import Feed, Outputs, Watch, alone, drive, layout_of, watched

CONDITION = (3, 1, 1, 2)
LINES = GRID - 1  # enough for every method to have evicted
CLOSE = 1e-6


def layout(attention: str) -> Layout:
    shape = layout_of(CONDITION, lines=LINES, line=GRID, kv_heads=ATTENTION[attention] or 4, layers=1)
    return replace(shape, branches=(0, 1, 0, 1))


@functools.cache
def feed(attention: str) -> Feed:
    return Feed(layout(attention))


class Kept(Watch):
    """What each row held after each pass, per site: visual numbers of (kv_heads, live), sorted."""

    def __init__(self) -> None:
        self.rows: list[dict[Site, list[Tensor]]] = []

    def settled(self, method: Method, step: Step) -> None:
        live = {site: [n for run, n in zip(slot.bank.runs, slot.live, strict=True) for _ in range(run.start, run.stop)]
                for site, slot in method.slots.items()}  # fmt: skip
        self.rows.append({site: [slot.visual[row, :, :n].sort(-1).values for row, n in enumerate(live[site])]
                          for site, slot in method.slots.items()})  # fmt: skip


def run(method: Method, layout: Layout, feed: Feed, codec: str) -> tuple[Outputs, Kept]:
    kept = Kept()
    return drive(watched(method, kept), layout, feed, CODECS[codec]), kept


@functools.cache
def together(cell: Cell) -> tuple[Outputs, Kept]:
    """All rows in one batch."""
    return run(cell.tight(), layout(cell.attention), feed(cell.attention), cell.codec)


def apart(cell: Cell) -> list[str]:
    """Where a row in ragged company differs from the same row alone."""
    ragged, kept = together(cell)
    faults = []
    for row, condition in enumerate(CONDITION):
        lone, lone_kept = run(cell.tight(), alone(layout(cell.attention), row), feed(cell.attention).of_row(row, condition), cell.codec)
        for (index, site), out in lone.items():
            deviation = (ragged[index, site][row, :, : out.size(2)] - out[0]).abs().max()
            if not deviation <= CLOSE:
                faults.append(f"row {row}, pass {index}, layer {site.layer}: outputs differ by {deviation:.3g}")
        for index, (mine, theirs) in enumerate(zip(kept.rows, lone_kept.rows, strict=True)):
            others = [site.layer for site in theirs if not torch.equal(mine[site][row], theirs[site][0])]
            faults += [f"row {row}, pass {index}, layer {layer}: other entries" for layer in others]
    return faults


@pytest.mark.parametrize("cell", cells(), ids=label)
def test_a_ragged_row_is_as_it_is_alone(cell: Cell) -> None:
    assert apart(cell) == []


@pytest.mark.parametrize("cell", cells(evicting=True), ids=label)
def test_every_ragged_row_keeps_the_budget_and_its_condition(cell: Cell) -> None:
    method = cell.tight()
    assert isinstance(method, Evicting)
    keeps = getattr(method, "keep_condition", True)
    _, kept = together(cell)
    for index, sites in enumerate(kept.rows):
        for rows in sites.values():
            for row, held in enumerate(rows):
                assert held.size(-1) <= method.B + (CONDITION[row] if keeps else 0), f"pass {index}, row {row}"
                if keeps:
                    assert ((held < 0).sum(-1) == CONDITION[row]).all(), f"pass {index}, row {row}"
    assert all(held.size(-1) < LINES * GRID for held in kept.rows[-1][Site("decoder", 0)]), "nothing was evicted"


@dataclass
class FromTheFirstRow(Evicting):
    """Broken on purpose: takes the first row's condition for everybody's."""

    evict_after = "token"
    slack = 1

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            slots.evict(torch.full((*slots.visual.shape[:3], 1), slots.runs[0].condition))


def test_a_row_that_is_taken_for_another_is_caught() -> None:
    assert apart(Cell(FromTheFirstRow, (), "native", "mha"))
