"""Merging of entries that leave into entries that stay, against one sum per entry."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.codec import CODECS
from cachemark.cache.grouped_keys import banks
from cachemark.cache.layout import Site
from cachemark.core.errors import BadPlugin, Unsupported
from cachemark.kit.driver import layout_of

SITES, ROWS, HEADS, DIM = (Site("decoder", 0), Site("decoder", 1)), 2, 2, 4
PLACES, INTO = torch.tensor([4, 2]), torch.tensor([5, 1, 3])


def filled(codec: str) -> SlotBank:
    """A bank of seven entries, whose values are of random numbers."""
    layout = layout_of((1,) * ROWS, heads=HEADS, kv_heads=HEADS, head_dim=DIM)
    bank, draw = SlotBank(layout, SITES, 8, Memory("cpu", CODECS[codec])), torch.Generator().manual_seed(0)
    for slot in bank.slots:
        slot.append(*(torch.randn(ROWS, HEADS, 7, DIM, generator=draw) for _ in range(2)))
    return bank


def everywhere(x: Tensor) -> Tensor:
    return x.expand(len(SITES), ROWS, HEADS, *x.shape)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_an_entry_receives_a_weighted_sum(codec: str, keys: bool) -> None:
    bank, draw = filled(codec), torch.Generator().manual_seed(1)
    weights = torch.randn(len(SITES), ROWS, HEADS, len(INTO), len(PLACES), generator=draw)
    own = torch.rand(len(SITES), ROWS, HEADS, len(INTO), generator=draw)
    before = [bank.keys().clone(), bank.values().clone()]
    codes = [part.clone() for part in (*bank.k, *bank.v)]
    bank.merge(everywhere(PLACES), everywhere(INTO), weights, own, keys=keys)
    for old, new, merged in zip(before, (bank.keys(), bank.values()), (keys, True), strict=True):
        for receiver, at in enumerate(INTO.tolist()):
            expected = old[..., at, :].clone()
            if merged:
                expected *= own[..., receiver, None]
                for leaving, place in enumerate(PLACES.tolist()):
                    expected += weights[..., receiver, leaving, None] * old[..., place, :]
            torch.testing.assert_close(new[..., at, :], expected, atol=1e-6 if codec == "native" else 0.05, rtol=0)
            assert merged is not torch.equal(new[..., at, :], old[..., at, :])
    others = [place for place in range(8) if place not in INTO.tolist()]
    assert all(torch.equal(part[..., others, :], old[..., others, :]) for part, old in zip((*bank.k, *bank.v), codes, strict=True))


def test_other_shapes_and_shared_ranges_are_refused() -> None:
    bank, weights = filled("native"), torch.ones(len(SITES), ROWS, HEADS, len(INTO), len(PLACES))
    with pytest.raises(BadPlugin, match=r"weights of shape .*Use \(2, 2, 2, 3, 2\)"):
        bank.merge(everywhere(PLACES), everywhere(INTO), weights.mT)
    with pytest.raises(BadPlugin, match="merge takes positions"):
        bank.merge(PLACES, everywhere(INTO), weights)
    (grouped,) = banks(bank.layout, dict.fromkeys(SITES, 8), Memory("cpu", CODECS["kivi4"]))
    for slot in grouped.slots:
        slot.live[0] = 7
    with pytest.raises(Unsupported, match="kivi4 shares the ranges of keys"):
        grouped.merge(everywhere(PLACES), everywhere(INTO), weights, keys=True)
