"""The attention function against a softmax written out, one query at a time."""

import itertools

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.attention import attention
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Site
from cachemark.cache.slot import Slot
from cachemark.kit.driver import layout_of

HEADS, DIM = 4, 8


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(slot: Slot, q: Tensor, causal: bool) -> tuple[list[tuple[int, int, int, Tensor]], Tensor]:
    """Return each real query as (row, head, token, output), and the mass of keys, (rows, kv_heads, longest); in fp64."""
    layout, kv_heads = slot.bank.layout, slot.bank.layout.kv_heads
    out, mass = [], torch.zeros(layout.rows, kv_heads, max(slot.live), dtype=torch.float64)
    for run, n in zip(slot.bank.runs, slot.live, strict=True):
        keys, values = slot.read(run, n)
        for row in range(run.start, run.stop):
            for head in range(HEADS):
                shared = head // (HEADS // kv_heads)
                k, v = keys[row - run.start, shared], values[row - run.start, shared]
                for token in range(min(q.size(2), n) if causal else q.size(2)):
                    visible = max(0, n - q.size(2)) + token + 1 if causal else n
                    weights = (k[:visible].double() @ q[row, head, token].double() / DIM**0.5).softmax(0)
                    out.append((row, head, token, weights @ v[:visible].double()))
                    mass[row, shared, :visible] += weights
    return out, mass


@pytest.mark.parametrize("condition", [(1,), (3,), (2, 2), (3, 1, 1, 2)], ids=str)
def test_it_is_a_softmax_over_the_live_keys(condition: tuple[int, ...]) -> None:
    """A window of visual tokens sees all before it and itself in order."""
    for kv_heads, (queries, causal), mass in itertools.product((4, 2, 1), ((1, False), (3, False), (0, True), (3, True)), (False, True)):
        tokens, layout = 5 if queries else 0, layout_of(condition, heads=HEADS, kv_heads=kv_heads, head_dim=DIM)
        slot = SlotBank(layout, (Site("decoder", 0),), max(condition) + tokens, Memory()).slots[0]
        slot.append(*normal(2, len(condition), kv_heads, max(condition), DIM), condition=True)
        if tokens:
            slot.append(*normal(2, len(condition), kv_heads, tokens, DIM, seed=1))
        q = normal(len(condition), HEADS, queries or max(condition), DIM, seed=2)
        out, own_mass = attention(q, slot, mass=mass, causal=causal)
        outputs, masses = expected(slot, q, causal)
        assert out.shape == q.shape
        assert max((out[row, head, token] - mixed).abs().max() for row, head, token, mixed in outputs) < 1e-5
        assert (own_mass is None) is not mass
        if own_mass is not None:
            assert own_mass.dtype == torch.float32
            assert (own_mass - masses).abs().max() < 1e-5
