"""What lies outside the live prefix is never read: filling it with NaN changes nothing, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Site, Step
from cachemark.cache.slot import Slot
from cachemark.contract.method import Method

from . import test_ragged as ragged
from .cells import Cell, Ran, cells, generate, halved, recorded
from .driver import Watch, drive, watched


def poison(part: Tensor) -> None:
    """NaN where the type has it; else a number that no entry of these runs can hold by chance."""
    part.fill_(float("nan") if part.is_floating_point() else 113)


@dataclass
class Poison(Watch):
    """Spoils everything dead before each pass reaches a site, and again before the pass is closed."""

    spoiled: int = 0

    def before(self, method: Method, site: Site, step: Step) -> None:
        for slot in method.slots.values():
            self._spoil(slot)
        if method.stage is not None:
            poison(method.stage.k)
            poison(method.stage.v)

    def fed(self, method: Method, step: Step) -> None:
        for slot in method.slots.values():
            self._spoil(slot)

    def _spoil(self, slot: Slot) -> None:
        for run, live in zip(slot.bank.runs, slot.live, strict=True):
            for part in (*slot.k, *slot.v, slot.visual):
                dead = part[run.rows, :, live:]
                poison(dead)
                self.spoiled += dead.numel()


def run(cell: Cell, method: Method) -> Ran:
    watch = Poison()
    ran = generate(cell, method, watch)
    assert watch.spoiled > 0
    return ran


@pytest.mark.parametrize("cell", halved(cells()))
def test_dead_storage_is_never_read(cell: Cell) -> None:
    expected, ran = recorded(cell), run(cell, cell.tight())
    assert torch.equal(ran.logits, expected.logits)
    assert torch.equal(ran.tokens, expected.tokens)


@pytest.mark.parametrize("cell", halved(cells(evicting=True)))
def test_dead_storage_of_ragged_rows_is_never_read(cell: Cell) -> None:
    """Here dead entries of one row lie beside live ones of another."""
    watch = Poison()
    layout = ragged.layout(cell.attention)
    spoiled = drive(watched(cell.tight(), watch), layout, ragged.feed(cell.attention), CODECS[cell.codec])
    expected, _ = ragged.together(cell)
    assert watch.spoiled > 0
    for where, out in expected.items():
        for row, condition in enumerate(layout.condition):
            real = slice(condition) if where[0] == 0 else slice(None)
            assert torch.equal(spoiled[where][row, :, real], out[row, :, real]), f"pass {where[0]}, row {row}"


@dataclass
class Padded(Method):
    """Broken on purpose: attends to one dead entry under an additive mask, as a padded buffer does."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slot = self.slots[site]
        slot.append(k, v, condition=step.count == 0)
        n = slot.live[0]
        k, v = slot.k[0][:, :, : n + 1], slot.v[0][:, :, : n + 1]
        bias = torch.zeros(k.size(2)).masked_fill(torch.arange(k.size(2)) >= n, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


def test_a_padded_buffer_is_caught() -> None:
    cell = Cell(Padded, (), "native", "mha")
    assert generate(cell, Padded()).logits.isfinite().all()
    assert run(cell, Padded()).logits.isnan().any()
