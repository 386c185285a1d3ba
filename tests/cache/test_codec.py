"""Error bounds of the codecs, what they cost, and keys with ranges shared by 32 tokens, found wherever an entry is moved."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import E4M3, GROUP, INT4, INT8, KIVI4, Codec
from cachemark.cache.codecs import CODECS, codec
from cachemark.cache.grouped_keys import GroupedBank, banks
from cachemark.cache.layout import Layout, Site, raster_steps
from cachemark.cache.rotated import codebook, direction_codes, pack_bits, rotation, table, turbo, unpack_bits
from cachemark.core.errors import CachemarkError
from cachemark.kit.driver import layout_of

finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
lists = st.integers(1, 16).flatmap(lambda width: st.lists(st.lists(finite, min_size=width, max_size=width), min_size=1, max_size=4))
HEADS, DIM, SITES = 2, 4, (Site("decoder", 0), Site("decoder", 1))


@given(lists)
def test_int8_is_off_by_half_a_step_at_most(rows: list[list[float]]) -> None:
    x = torch.tensor(rows)
    codes, scale = INT8.encode(x)
    read = INT8.decode((codes, scale), torch.float32).double()
    half = x.double().abs().amax(-1, keepdim=True) / 127 / 2
    assert ((read - x.double()).abs() <= half * (1 + 1e-5) + torch.finfo(torch.float32).tiny).all()


@given(lists)
def test_fp8_keeps_four_digits_of_a_number_beside_the_largest(rows: list[list[float]]) -> None:
    """The error is half a unit of the third mantissa bit, or half the smallest step below normal floats."""
    x = (torch.tensor(rows) * 2.0**-90).clamp(-3e4, 3e4)
    codes, scale = E4M3.encode(x)
    off = (E4M3.decode((codes, scale), torch.float32).double() - x.double()).abs()
    of_scale = scale.double() * 2.0**-10  # half of 2^-9, the least step of e4m3
    assert (off <= torch.maximum(x.double().abs() * 2.0**-4, of_scale) * (1 + 1e-3)).all()


@pytest.mark.parametrize(("width", "low", "high"), [(64, -1.0, 1.0), (32, 5.0, 6.0), (48, -3e4, 3e4), (8, -1e-3, 0.0)])
def test_int4_is_off_by_half_a_step_of_its_group_at_most(width: int, low: float, high: float) -> None:
    x = torch.linspace(low, high, width)[torch.randperm(width, generator=torch.Generator().manual_seed(1))].repeat(3, 1)
    grouped = x.unflatten(-1, (-1, math.gcd(width, 32))).double()
    step = (grouped.amax(-1, keepdim=True) - grouped.amin(-1, keepdim=True)) / 15
    rounding = grouped.abs().amax() * 2.0**-11 + 15 * step * 2.0**-11 + 16 * 2.0**-25  # of the least value and the step, both fp16
    off = (INT4.decode(INT4.encode(x), torch.float32).double() - x.double()).unflatten(-1, grouped.shape[-2:]).abs()
    assert (off <= step / 2 + rounding).all()
    assert off.amax() > step.amin() / 8, "four bits cannot be exact here"


@pytest.mark.parametrize("stored", CODECS.values(), ids=list(CODECS))
def test_a_codec_keeps_zeros_and_nan_and_is_as_wide_as_declared(stored: Codec) -> None:
    zero = torch.zeros(3, 8)
    assert torch.equal(stored.decode(stored.encode(zero), torch.float32), zero)
    for number in (float("nan"), float("inf")):
        assert not stored.decode(stored.encode(torch.tensor([[1.0, number, *[0.0] * 6]])), torch.float32).isfinite().all()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        parts = stored.encode(torch.ones(2, 5, 64, dtype=dtype))
        assert [(part.size(-1), part.dtype) for part in parts] == list(stored.widths(64, dtype))
        assert sum(part[0, 0].nbytes for part in parts) == stored.entry_bytes(64, dtype)
        assert stored.decode(parts, dtype).dtype == dtype


@pytest.mark.parametrize(("width", "bits", "expected", "deviation"), [
    (64, 3, 0.032676, 0.00836), (80, 4, 0.008960, 0.00272), (128, 2, 0.118838, 0.01531)])
def test_turboquant_has_its_expected_distortion(width: int, bits: int, expected: float, deviation: float) -> None:
    """Of a unit vector, by exact integrals; and the same codes for a vector of any length, alone or in a batch."""
    stored, constants = CODECS[f"turbo{bits}"], table(width, bits, torch.device("cpu"))
    x = torch.nn.functional.normalize(torch.randn(10_000, width, generator=torch.Generator().manual_seed(0)), dim=-1)
    codes, read = direction_codes(x, constants)[0], stored.decode(stored.encode(x), torch.float32)
    assert float((read - x).square().sum(-1).mean()) == pytest.approx(expected, abs=4 * deviation / 10_000**0.5)
    assert torch.equal(direction_codes(1024 * x, constants)[0], codes)
    assert all(torch.equal(direction_codes(x[at], constants)[0], codes[at]) for at in range(100))
    assert torch.equal(unpack_bits(pack_bits(codes, bits), bits), codes)


def test_a_rotation_is_orthogonal_and_spreads_a_loud_channel() -> None:
    for width in (8, 80, 100):
        turned = torch.from_numpy(rotation(width))
        torch.testing.assert_close(turned @ turned.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-14)
    x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0)) * torch.ones(64).index_fill(0, torch.tensor([3, 20, 41]), 10)
    error = {name: float((CODECS[name].decode(CODECS[name].encode(x), torch.float32) - x).square().sum() / x.square().sum())
             for name in ("int4", "rot4", "turbo4")}
    assert error["rot4"] < error["turbo4"] < error["int4"]


def test_what_has_no_codes_is_refused() -> None:
    for call, message in ((lambda: INT4.widths(15, torch.float32), r"15 channels.*int8"),
                          (lambda: turbo(1), r"2, 3 or 4 bits \(got 1\).*turbo2"), (lambda: codec("turbo5"), r"'turbo5'.*'turbo4'"),
                          (lambda: CODECS["turbo3"].widths(20, torch.float32), r"20 channels.*int8"),
                          (lambda: codebook(2, 4), r"no codebook for vectors of 2 channels")):
        with pytest.raises(CachemarkError, match=message):
            call()


def layout(condition: tuple[int, ...] = (1,)) -> Layout:
    return layout_of(condition, lines=8, line=10, heads=HEADS, kv_heads=HEADS, head_dim=DIM)


def vectors(shape: Layout) -> Tensor:
    """Return keys (sites, rows, kv_heads, tokens, head_dim), one channel 100 times as large."""
    draw = torch.Generator().manual_seed(0)
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
    shape, k = layout(), vectors(layout())
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
    geometry, k = layout(condition), vectors(layout(condition))
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
            fed, rounded_until = k[index, run.rows, :, : run.condition], run.condition // GROUP * GROUP
            assert torch.equal(keys[:, :, rounded_until:], fed[:, :, rounded_until:])
            first, its_codes = fed[:, :, :GROUP], keys[:, :, :GROUP]
            assert not torch.equal(its_codes, first)
            assert ((its_codes - first).abs() <= (first.amax(2, keepdim=True) - first.amin(2, keepdim=True)) / 30 * 1.02).all()


def test_bytes_count_ranges_and_the_group_that_fills() -> None:
    shape, memory = layout(), Memory("cpu", KIVI4)
    banks(shape, dict.fromkeys(SITES, 20), memory)
    groups = -(-(1 + 80) // GROUP)
    entry = (DIM // 2 + 2) + (DIM // 2 + 2 + 2)  # codes and number of a key; codes, step and least of a value
    shared = groups * DIM * 2 * 2 + GROUP * DIM * 4
    assert memory.nbytes("slots") == len(SITES) * HEADS * (20 * entry + shared)
    assert KIVI4.pair_bytes(DIM, torch.float32) == entry
    assert KIVI4.shared_bytes(DIM, torch.float32, 81) == shared
