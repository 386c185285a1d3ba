"""Rows whose conditions differ in length: each row keeps the rules by itself, as if it were alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..cache.codec import CODECS
from ..cache.layout import Layout, Site, Step
from ..contract.method import Method
from .driver import Onlooker, Outputs, Place, RasterFeed, alone, drive, layout_of, slots_of, watched
from .findings import Flaw
from .next_token import ATTENTION, GRID, Cell

CONDITION = (3, 1, 1, 2)
LINES = GRID - 1  # enough for every method to have evicted
CLOSE = 1e-6


def layout(attention: str) -> Layout:
    """Four rows with conditions of their own, of which the second and the last are without condition."""
    shape = layout_of(CONDITION, lines=LINES, line=GRID, kv_heads=ATTENTION[attention] or 4, layers=1)
    return replace(shape, branches=(0, 1, 0, 1))


@functools.cache
def feed(attention: str) -> RasterFeed:
    """Queries, keys and values for that layout."""
    return RasterFeed(layout(attention))


class Kept(Onlooker):
    """Keeps what each row held after each pass, per site: visual numbers of (kv_heads, live), sorted."""

    def __init__(self) -> None:
        self.rows: list[dict[Place, list[Tensor]]] = []

    def settled(self, method: Method, step: Step) -> None:
        slots = slots_of(method)
        live = {place: [n for run, n in zip(slot.bank.runs, slot.live, strict=True) for _ in range(run.start, run.stop)]
                for place, slot in slots.items()}  # fmt: skip
        self.rows.append({place: [slot.visual[row, :, :n].sort(-1).values for row, n in enumerate(live[place])]
                          for place, slot in slots.items()})  # fmt: skip


def run(method: Method, layout: Layout, feed: RasterFeed, codec: str) -> tuple[Outputs, Kept]:
    """A driven generation, and what its rows held."""
    kept = Kept()
    return drive(watched(method, kept), layout, feed, CODECS[codec]), kept


@functools.cache
def together(cell: Cell) -> tuple[Outputs, Kept]:
    """All rows in one batch."""
    rows = layout(cell.attention)
    return run(cell.tight(rows), rows, feed(cell.attention), cell.codec)


def rows_are_as_alone(cell: Cell) -> Iterator[Flaw]:
    """A row among others, whose condition has another length, answers and keeps what it does alone."""
    ragged, kept = together(cell)
    rows = layout(cell.attention)
    size = f"rows with conditions of {', '.join(map(str, CONDITION))}, {LINES}×{GRID} tokens, codec {cell.codec}"
    for row, condition in enumerate(CONDITION):
        lone, lone_kept = run(cell.tight(rows), alone(rows, row), feed(cell.attention).of_row(row, condition), cell.codec)
        for (index, site), out in lone.items():
            wrong = ~((ragged[index, site][row, :, : out.size(2)] - out[0]).abs() <= CLOSE)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                yield Flaw(f"row {row} as it is alone, {float(out[0][at]):.6g}", f"{float(ragged[index, site][row][at]):.6g}", size,
                              (100 + row,), index, site.layer, at[0])
                break
        for index, (mine, theirs) in enumerate(zip(kept.rows, lone_kept.rows, strict=True)):
            others = [site.layer for site in theirs if not torch.equal(mine[site][row], theirs[site][0])]
            if others:
                yield Flaw(f"the entries that row {row} keeps alone", "others", size, (100 + row,), index, others[0])
                break


def rows_keep_the_budget(cell: Cell) -> Iterator[Flaw]:
    """Every row keeps its own condition and no more than the budget."""
    method = cell.tight()
    if not cell.cls.evicts or not hasattr(method, "B"):
        return
    keeps, (_, kept) = getattr(method, "keep_condition", True), together(cell)
    for index, sites in enumerate(kept.rows):
        for site, rows in sites.items():
            for row, held in enumerate(rows):
                most, own = method.B + (CONDITION[row] if keeps else 0), (held < 0).sum(-1)
                if held.size(-1) > most or (keeps and not (own == CONDITION[row]).all()):
                    asked = f"at most {most} entries{f', {CONDITION[row]} of them the condition' if keeps else ''}"
                    yield Flaw(asked, f"{held.size(-1)}, of which {own.tolist()}", f"row {row} of {LINES}×{GRID} tokens", (), index,
                                  site.layer)
                    return
    if not all(held.size(-1) < LINES * GRID for held in kept.rows[-1][Site("decoder", 0)]):
        yield Flaw("entries that are evicted", "none", f"{LINES}×{GRID} tokens")
