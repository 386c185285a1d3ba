"""Checks of rows whose conditions differ in length: each row behaves as it does alone."""

from __future__ import annotations

import functools
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from ..cache.codecs import CODECS
from ..cache.layout import Layout, Site, Step
from ..contract.method import Method
from .common import Findings, Poison
from .driver import Onlooker, Outputs, Place, RasterFeed, drive, layout_of, watched
from .findings import KitFinding
from .next_token import ATTENTION, GRID, Cell
from .oracle import Shadow, first_difference

CONDITION = (3, 1, 1, 2)
LINES = GRID - 1  # enough for every method to have evicted
CLOSE = 1e-6


def layout(attention: str) -> Layout:
    """Return four rows with conditions of different length; the second and the last row are unconditional."""
    shape = layout_of(CONDITION, lines=LINES, line=GRID, kv_heads=ATTENTION[attention] or 4, layers=1)
    return replace(shape, branches=(0, 1, 0, 1))


@functools.cache
def feed(attention: str) -> RasterFeed:
    """Return queries, keys and values for that layout."""
    return RasterFeed(layout(attention))


class RowContents(Onlooker):
    """Records the entries of each row after each step, per site: sorted visual tokens (kv_heads, live)."""

    def __init__(self) -> None:
        self.steps: list[dict[Place, list[Tensor]]] = []

    def after_end(self, method: Method, step: Step) -> None:
        self.steps.append({place: [slot.visual[row, :, :n].sort(-1).values for run, n in zip(slot.bank.runs, slot.live, strict=True)
                                   for row in range(run.start, run.stop)] for place, slot in method.slots.items()})  # fmt: skip


def run(method: Method, layout: Layout, feed: RasterFeed, codec: str, *watches: Onlooker) -> tuple[Outputs, RowContents]:
    """Drive a method and return its outputs and the entries of its rows."""
    contents = RowContents()
    return drive(watched(method, contents, *watches), layout, feed, CODECS[codec]), contents


@functools.cache
def batched(cell: Cell) -> tuple[Outputs, RowContents]:
    """Return the run of all rows in one batch."""
    rows = layout(cell.attention)
    return run(cell.tight(rows), rows, feed(cell.attention), cell.codec)


def long_conditions_are_causal(cell: Cell) -> Findings:
    """Over conditions of several tokens attention is causal and equals masked attention, to 1e-5."""
    shadow, rows = Shadow(), layout(cell.attention)
    run(cell.tight(rows), rows, feed(cell.attention), cell.codec, shadow)
    if wrong := shadow.first:
        expected = f"{wrong.expected:.6g}, as masked attention gives"
        yield KitFinding(expected, f"{wrong.actual:.6g}", _size(cell), (), wrong.step, wrong.layer, wrong.head)


def padding_is_never_read(cell: Cell) -> Findings:
    """Storage after the end of a shorter row is never read: NaN in it changes no bit of any row."""
    rows, watch = layout(cell.attention), Poison()
    spoiled, contents = run(cell.tight(rows), rows, feed(cell.attention), cell.codec, watch)
    outputs, clean = batched(cell)
    for (index, site), out in outputs.items():
        for row, condition in enumerate(CONDITION):
            real = slice(None if index else condition)  # queries after a shorter condition are padding
            if wrong := first_difference(out[row : row + 1, :, real], spoiled[index, site][row : row + 1, :, real], index, site, 0):
                yield KitFinding(f"row {row} as with zeros there, {wrong.expected:.9g}", f"{wrong.actual:.9g}", _size(cell), (100 + row,),
                                 index, site.layer, wrong.head)
                return
    for index, (mine, theirs) in enumerate(zip(clean.steps, contents.steps, strict=True)):
        for place in mine:
            if different := [row for row in range(len(CONDITION)) if not torch.equal(mine[place][row], theirs[place][row])]:
                yield KitFinding("the entries kept with zeros there", "different ones", _size(cell), (100 + different[0],), index,
                                 place.layer)
                return


def _size(cell: Cell) -> str:
    return f"rows with conditions of {', '.join(map(str, CONDITION))}, {LINES}×{GRID} tokens, codec {cell.codec}"


def rows_equal_single_rows(cell: Cell) -> Findings:
    """A row gives and keeps the same next to rows with conditions of other lengths as alone."""
    outputs, contents = batched(cell)
    rows = layout(cell.attention)
    size = _size(cell)
    for row, condition in enumerate(CONDITION):
        alone = replace(rows, condition=(condition,), seeds=rows.seeds[row : row + 1], branches=rows.branches[row : row + 1])
        fed = copy(feed(cell.attention))
        fed.rows, fed.condition = slice(row, row + 1), condition
        own_outputs, own_contents = run(cell.tight(rows), alone, fed, cell.codec)
        for (index, site), out in own_outputs.items():
            batch = outputs[index, site][row : row + 1, :, : out.size(2)]
            if wrong := first_difference(out, batch, index, site, CLOSE):
                yield KitFinding(f"row {row} as alone, {wrong.expected:.6g}", f"{wrong.actual:.6g}", size, (100 + row,), index, site.layer,
                                 wrong.head)
                break
        for index, (mine, theirs) in enumerate(zip(contents.steps, own_contents.steps, strict=True)):
            different = [site.layer for site in theirs if not torch.equal(mine[site][row], theirs[site][0])]
            if different:
                yield KitFinding(f"the entries that row {row} keeps alone", "different ones", size, (100 + row,), index, different[0])
                break


def rows_keep_the_budget(cell: Cell) -> Findings:
    """Every row keeps its own condition and no more entries than the budget."""
    method = cell.tight()
    if not cell.cls.evicts or not hasattr(method, "B"):
        return
    with_condition, (_, contents) = getattr(method, "keep_condition", True), batched(cell)
    for index, sites in enumerate(contents.steps):
        for site, rows in sites.items():
            for row, tokens in enumerate(rows):
                most, own = method.B + (CONDITION[row] if with_condition else 0), (tokens == -1).sum(-1)
                if tokens.size(-1) > most or (with_condition and not (own == CONDITION[row]).all()):
                    expected = f"at most {most} entries{f', {CONDITION[row]} of them the condition' if with_condition else ''}"
                    yield KitFinding(expected, f"{tokens.size(-1)}, {own.tolist()} of them the condition",
                                  f"row {row} of {LINES}×{GRID} tokens", (), index, site.layer)
                    return
    if not all(tokens.size(-1) < LINES * GRID for tokens in contents.steps[-1][Site("decoder", 0)]):
        yield KitFinding("evicted entries", "none", f"{LINES}×{GRID} tokens")
