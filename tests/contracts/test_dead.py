"""What lies outside the live prefix is never read: filling it with NaN changes nothing, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Site, Step
from cachemark.contract.method import Method
from cachemark.kit import ragged
from cachemark.kit.common import Poison
from cachemark.kit.driver import drive, watched

from .cells import Cell, KitRun, cells, generate, halved


def run(cell: Cell, method: Method) -> KitRun:
    watch = Poison()
    ran = generate(cell, method, watch)
    assert watch.spoiled > 0
    return ran


@pytest.mark.parametrize("cell", halved(cells(evicting=True)))
def test_dead_storage_of_ragged_rows_is_never_read(cell: Cell) -> None:
    """Here dead entries of one row lie beside live ones of another."""
    watch = Poison()
    layout = ragged.layout(cell.attention)
    spoiled = drive(watched(cell.tight(layout), watch), layout, ragged.feed(cell.attention), CODECS[cell.codec])
    expected, _ = ragged.batched(cell)
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
