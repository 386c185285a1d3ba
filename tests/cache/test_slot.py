"""Hole filling by properties, writing, reading and merging, the arena that everything lies in, and large storage in chunks."""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.bank import TRANSIENT, SlotBank
from cachemark.cache.codec import NATIVE, Codec
from cachemark.cache.codecs import CODECS
from cachemark.cache.grouped_keys import banks
from cachemark.cache.layout import Layout, Site, Step, raster_steps
from cachemark.cache.ragged import RaggedSlot, RaggedWorkspace
from cachemark.cache.slot import Workspace
from cachemark.core.errors import BadPlugin, Unsupported
from cachemark.kit.common import calibration
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.machine.memory import TensorPeak
from cachemark.methods.registry import METHODS

SITES = (Site("decoder", 0), Site("decoder", 1))
HEADS, DIM = 2, 8
ALONE = [codec for codec in CODECS.values() if not codec.grouped]  # those that write each vector by itself
ROWS = 2
PLACES, INTO = (torch.tensor(entries).expand(len(SITES), ROWS, HEADS, -1) for entries in ([4, 2], [5, 1, 3]))


def bank_of(condition: tuple[int, ...], capacity: int, codec: Codec = NATIVE) -> SlotBank:
    return SlotBank(layout_of(condition, heads=HEADS, kv_heads=HEADS, head_dim=DIM), SITES, capacity, Memory("cpu", codec))


def filled(condition: tuple[int, ...], live: tuple[int, ...], capacity: int) -> tuple[SlotBank, Tensor, Tensor]:
    """Return a bank whose entries store their own number everywhere, its follower, and the numbers, (sites, rows, kv_heads, capacity)."""
    bank = bank_of(condition, capacity)
    number = torch.arange(bank.visual.numel()).view(bank.visual.shape)
    follower = bank.follow(number.double())
    bank.k[0].copy_(number[..., None].expand(bank.k[0].shape))
    bank.v[0].copy_(-number[..., None].expand(bank.v[0].shape))
    bank.visual.copy_(number)
    for slot in bank.slots:
        slot.live = list(live)
    return bank, follower, number


@given(st.data())
def test_the_tail_fills_the_holes_with_its_keys_values_and_followers(data: st.DataObject) -> None:
    """Live lengths of each run of rows, capacity, and what goes, (sites, rows, kv_heads, m), are drawn."""
    condition = data.draw(st.sampled_from([(1,), (1, 1), (2, 1), (1, 3, 3)]))
    runs = layout_of(condition).runs
    live = tuple(data.draw(st.integers(1, 12)) for _ in runs)
    m = data.draw(st.integers(1, min(live)))
    lengths = [n for n, run in zip(live, runs, strict=True) for _ in range(run.start, run.stop)]
    places = torch.tensor([[[data.draw(st.permutations(range(n)))[:m] for _ in range(HEADS)] for n in lengths] for _ in SITES])
    bank, follower, before = filled(condition, live, max(live) + data.draw(st.integers(0, 3)))
    bank.evict(places)
    assert bank.live == [n - m for n in live]
    assert all(slot.live == bank.live for slot in bank.slots)
    for site, (row, n), head in itertools.product(range(len(SITES)), enumerate(lengths), range(HEADS)):
        old, new = before[site, row, head].tolist(), bank.visual[site, row, head].tolist()
        gone = {old[place] for place in places[site, row, head].tolist()}
        assert sorted(new[: n - m]) == sorted(set(old[:n]) - gone), "the survivors are others"
        moved = [place for place in range(n - m) if new[place] != old[place]]
        assert {old[place] for place in moved} <= gone, "an entry outside the holes has moved"
        assert {new[place] for place in moved} <= set(old[n - m : n]), "what moved was not in the tail"
        assert new[n:] == old[n:], "something beyond the live prefix was written"
    numbers = bank.visual[..., None].float()
    for run, n in enumerate(bank.live):
        kept = (slice(None), bank.runs[run].rows, slice(None), slice(n))
        assert torch.equal(bank.k[0][kept], numbers[kept].expand(bank.k[0][kept].shape))
        assert torch.equal(bank.v[0][kept], -numbers[kept].expand(bank.v[0][kept].shape))
        assert torch.equal(follower[kept], bank.visual[kept].double())
        freed = follower[:, bank.runs[run].rows, :, n : live[run]]
        assert not freed.any(), "a freed place of a follower is zero, for the entry that comes next"


@given(st.integers(2, 9), st.data())
def test_one_place_for_all_is_the_same_eviction(n: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, n - 1))
    (by_place, follower, _), (many, other, _) = (filled((1, 1), (n,), 9) for _ in range(2))
    by_place.evict_place(0, place)
    many.evict(torch.full((len(SITES), 2, HEADS, 1), place))
    assert by_place.live == many.live
    assert torch.equal(follower, other)
    for one, all_at_once in zip(*((*bank.k, *bank.v, bank.visual[..., None]) for bank in (by_place, many)), strict=True):
        assert torch.equal(one[..., : n - 1, :], all_at_once[..., : n - 1, :])


@pytest.mark.parametrize("codec", ALONE, ids=lambda codec: codec.name)
def test_what_is_written_is_read(codec: Codec) -> None:
    bank = bank_of((2, 1), 5, codec)
    slot = bank.slots[0]
    draw = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 2, HEADS, 2, DIM, generator=draw)
    slot.append(k, v, condition=True)
    assert slot.live == [2, 1]
    more_k, more_v = torch.randn(2, 2, HEADS, 1, DIM, generator=draw)
    slot.append(more_k, more_v)
    assert slot.live == [3, 2]
    decoded = [codec.decode(codec.encode(part), torch.float32) for part in (k, v, more_k, more_v)]
    for run, condition in zip(bank.runs, (2, 1), strict=True):
        keys, values = slot.read(run, condition + 1)
        assert torch.equal(keys, torch.cat((decoded[0][run.rows, :, :condition], decoded[2][run.rows]), 2))
        assert torch.equal(values, torch.cat((decoded[1][run.rows, :, :condition], decoded[3][run.rows]), 2))
        assert torch.equal(bank.keys(slice(0, 1), slice(None))[0, run.rows, :, : condition + 1], keys)
    assert not bank.slots[1].k[0].any(), "the other site was written"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_survivors_keep_their_codes(ragged: bool, chosen: bool) -> None:
    """Codes of codes decoded to bf16 differ from them, so a survivor of many scales would drift."""
    layout = replace(layout_of((0, 0), heads=HEADS, kv_heads=HEADS, head_dim=DIM), paradigm="next-scale", dtype=torch.bfloat16,
                     scales=((1, 2), (2, 2), (2, 3)))
    memory, draw = Memory("cpu", CODECS["rot4"]), torch.Generator().manual_seed(0)
    x, start = torch.randn(2, HEADS, 12, DIM, generator=draw).bfloat16(), 0
    expected = [torch.empty(2, HEADS, 0, part.size(-1), dtype=part.dtype) for part in memory.codec.encode(x)]
    slot = RaggedSlot(layout, SITES[0], 5 * HEADS, memory) if ragged else SlotBank(layout, SITES, 5, memory).slots[0]
    workspace = (RaggedWorkspace if ragged else Workspace)(layout, 11 * HEADS if ragged else 11, memory)
    for tokens, kept in zip(layout.scale_tokens, ([0, 1], [0, 2, 3, 5], [1, 2, 3, 4, 9]), strict=True):
        own = x[:, :, start : start + tokens]
        start += tokens
        expected = [torch.cat(pair, 2)[:, :, kept] for pair in zip(expected, memory.codec.encode(own), strict=True)]
        places = torch.tensor(kept).expand(2, HEADS, -1) if chosen else [range(place, place + 1) for place in kept]
        if isinstance(slot, RaggedSlot):
            workspace.put(slot, 0, own, own)
            slot.absorb(workspace, list(places.unbind(1)) if isinstance(places, Tensor) else [places] * HEADS)
        else:
            workspace.put(slot, own, own)
            slot.absorb(workspace, places)
        for parts in (slot.k, slot.v):
            for part, codes in zip(parts, expected, strict=True):
                live = part[:, : HEADS * len(kept)].unflatten(1, (HEADS, -1)) if ragged else part[:, :, : len(kept)]
                assert torch.equal(live, codes)


def test_settling_numbers_what_was_written() -> None:
    bank = bank_of((2, 1), 6)
    steps = [Step(0, 9), Step(1, 9, 0, 1, 1, ("token",)), Step(2, 9, 1, 2, 1, ("token",))]
    for step in steps:
        x = torch.zeros(2, HEADS, step.count or 2, DIM)
        for slot in bank.slots:
            slot.append(x, x, condition=step.count == 0)
        bank.end_step(step)
    table = bank.table()
    assert table.shape == (2, 2, HEADS, 5)
    assert table[1, 0, 0].tolist() == [-1, -1, 0, 1, 2]
    assert table[0, 1, 1].tolist() == [-1, 0, 1, 2, -1], "a shorter row ends with −1"
    assert (bank.length.tolist(), bank.live_visual) == ([5, 4], 3)
    assert (bank.peak, bank.logical_bytes) == (9 * len(SITES), 9 * len(SITES) * HEADS * 2 * DIM * 4)


def test_the_same_name_gets_the_same_storage_zeroed_once_in_a_generation() -> None:
    memory = Memory()
    memory.begin()
    first = memory.zeros("a", (2, 3), torch.float32)
    first += 1
    with pytest.raises(AssertionError, match="a is requested twice"):
        memory.zeros("a", (2, 3), torch.float32)
    memory.begin()
    again = memory.zeros("a", (2, 3), torch.float32)
    assert again.data_ptr() == first.data_ptr() == memory.pointers()["a"]
    assert not again.any()
    memory.begin()
    with pytest.raises(ValueError, match=r"a was \(2, 3\) torch.float32.*one Memory serves one case"):
        memory.zeros("a", (2, 3), torch.float64)


def mergeable(codec: str) -> SlotBank:
    """A bank of seven entries, whose values are of random numbers."""
    bank, draw = bank_of((1,) * ROWS, 8, CODECS[codec]), torch.Generator().manual_seed(0)
    for slot in bank.slots:
        slot.append(*(torch.randn(ROWS, HEADS, 7, DIM, generator=draw) for _ in range(2)))
    return bank


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("codec", ["native", "int8"])
def test_an_entry_receives_a_weighted_sum(codec: str, keys: bool) -> None:
    bank, draw = mergeable(codec), torch.Generator().manual_seed(1)
    weights, own = torch.randn(*INTO.shape, PLACES.size(-1), generator=draw), torch.rand(INTO.shape, generator=draw)
    before = [bank.keys().clone(), bank.values().clone()]
    codes = [part.clone() for part in (*bank.k, *bank.v)]
    bank.merge(PLACES, INTO, weights, own, keys=keys)
    gone, into = (entries[0, 0, 0].tolist() for entries in (PLACES, INTO))
    for old, new, merged in zip(before, (bank.keys(), bank.values()), (keys, True), strict=True):
        expected = old[..., into, :]
        if merged:
            expected = own[..., None] * expected + sum(
                weights[..., leaving, None] * old[..., None, place, :] for leaving, place in enumerate(gone))
        torch.testing.assert_close(new[..., into, :], expected, atol=1e-6 if codec == "native" else 0.05, rtol=0)
        assert all(merged is not torch.equal(new[..., at, :], old[..., at, :]) for at in into)
    others = [place for place in range(8) if place not in into]
    assert all(torch.equal(part[..., others, :], old[..., others, :]) for part, old in zip((*bank.k, *bank.v), codes, strict=True))


def test_other_shapes_shared_ranges_and_writing_beyond_the_capacity_are_refused() -> None:
    """One token would broadcast into nothing, and the slot would lose it without a word."""
    for tokens in (1, 2):
        slot, x = bank_of((1,), 3).slots[0], torch.ones(1, HEADS, tokens, DIM)
        slot.live[0] = 4 - tokens
        with pytest.raises(BadPlugin, match="4 entries do not fit into a layer cache of 3"):
            slot.append(x, x)
    bank, weights = mergeable("native"), torch.ones(*INTO.shape, PLACES.size(-1))
    with pytest.raises(BadPlugin, match=r"weights of shape .*Use \(2, 2, 2, 3, 2\)"):
        bank.merge(PLACES, INTO, weights.mT)
    with pytest.raises(BadPlugin, match="merge takes positions"):
        bank.merge(PLACES[0, 0, 0], INTO, weights)
    (grouped,) = banks(bank.layout, dict.fromkeys(SITES, 8), Memory("cpu", CODECS["kivi4"]))
    for slot in grouped.slots:
        slot.live[0] = 7
    with pytest.raises(Unsupported, match="kivi4 shares the ranges of keys"):
        grouped.merge(PLACES, INTO, weights, keys=True)


@pytest.mark.parametrize("condition", [(1, 1, 1), (1, 1, 3)])
@pytest.mark.parametrize(("name", "parameters"), [("linear", {}), ("linear", {"score": "accumulated"}), ("rkv", {}), ("h2o", {}),
                                                  ("ssd_heads", {"buffer": "line"})])
def test_chunks_change_nothing(name: str, parameters: dict[str, str], condition: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(condition, kv_heads=2)
    cls, feed = METHODS.get(name), RasterFeed(layout)
    outputs = []
    for limit in (TRANSIENT, 10_000, 1):
        monkeypatch.setattr("cachemark.cache.bank.TRANSIENT", limit)
        values = {**calibration(cls, layout), **cls.parameters_for(Fraction(1, 2), layout), **parameters}
        outputs.append(drive(cls.build(values), layout, feed))
    for other in outputs[1:]:
        assert all(torch.equal(other[where], out) for where, out in outputs[0].items())


@pytest.mark.parametrize(("name", "layers"), [("linear", 36), ("rkv", 2)])
def test_evicting_a_line_at_the_size_of_the_paper_needs_little_on_the_way(name: str, layers: int) -> None:
    """LlamaGen-XL at batch 256 with guidance, in bf16. R-KV goes from block to block, so two show what 36 need."""
    rows, memory, cls = 512, Memory("meta"), METHODS.get(name)
    layout = Layout("next-token", (1,) * rows, 24, 24, 20, 20, 64, layers, tuple(range(rows)), (0,) * rows, torch.bfloat16, "meta")
    method = cls.build(cls.parameters_for(Fraction(1, 4), layout))
    method.begin(layout, [Site("decoder", layer) for layer in range(layers)], memory)
    step = next(s for s in raster_steps(layout) if "line" in s.edges and s.first + 1 == method.B)
    (bank,) = method.banks
    for slot in bank.slots:
        slot.live = [1 + method.B]
    with TensorPeak(tensor for _, tensor in memory.tensors.values()) as watch:
        method.evict(step, bank)
    assert bank.live == [1 + method.B - layout.line]
    assert watch.peak - 8 * layers * rows * layout.kv_heads * layout.line < 256 * 2**20
