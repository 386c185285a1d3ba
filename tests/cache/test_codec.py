"""Error bounds of the codecs, and what they cost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachemark.cache.codec import CODECS, E4M3, INT4, INT8, Codec
from cachemark.core.errors import Unsupported

finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
vectors = st.integers(1, 16).flatmap(lambda width: st.lists(st.lists(finite, min_size=width, max_size=width), min_size=1, max_size=4))


@given(vectors)
def test_int8_is_off_by_half_a_step_at_most(rows: list[list[float]]) -> None:
    x = torch.tensor(rows)
    codes, scale = INT8.encode(x)
    read = INT8.decode((codes, scale), torch.float32).double()
    half = x.double().abs().amax(-1, keepdim=True) / 127 / 2
    assert ((read - x.double()).abs() <= half * (1 + 1e-5) + torch.finfo(torch.float32).tiny).all()


def test_int8_has_the_largest_magnitude_at_127() -> None:
    codes, scale = INT8.encode(torch.tensor([[1.0, -4.0, 2.0], [0.0, 0.0, 1e-20]]))
    assert codes.tolist() == [[32, -127, 64], [0, 0, 127]]
    assert scale[:, 0].tolist() == pytest.approx([4 / 127, 1e-20 / 127])


@given(vectors)
def test_fp8_keeps_four_digits_of_a_number_beside_the_largest(rows: list[list[float]]) -> None:
    """The error is half a unit of the third mantissa bit, or half the smallest step below normal floats."""
    x = (torch.tensor(rows) * 2.0**-90).clamp(-3e4, 3e4)
    codes, scale = E4M3.encode(x)
    off = (E4M3.decode((codes, scale), torch.float32).double() - x.double()).abs()
    of_scale = scale.double() * 2.0**-10  # half of 2^-9, the least step of e4m3
    assert (off <= torch.maximum(x.double().abs() * 2.0**-4, of_scale) * (1 + 1e-3)).all()


def ranged(width: int, low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, width)[torch.randperm(width, generator=torch.Generator().manual_seed(1))].repeat(3, 1)


@pytest.mark.parametrize(("width", "low", "high"), [(64, -1.0, 1.0), (32, 5.0, 6.0), (48, -3e4, 3e4), (8, -1e-3, 0.0)])
def test_int4_is_off_by_half_a_step_of_its_group_at_most(width: int, low: float, high: float) -> None:
    x = ranged(width, low, high)
    grouped = x.unflatten(-1, (-1, math.gcd(width, 32))).double()
    step = (grouped.amax(-1, keepdim=True) - grouped.amin(-1, keepdim=True)) / 15
    rounding = grouped.abs().amax() * 2.0**-11 + 15 * step * 2.0**-11 + 16 * 2.0**-25  # of the least value and the step, both fp16
    off = (INT4.decode(INT4.encode(x), torch.float32).double() - x.double()).unflatten(-1, grouped.shape[-2:]).abs()
    assert (off <= step / 2 + rounding).all()
    assert off.amax() > step.amin() / 8, "four bits cannot be exact here"


def test_two_codes_of_int4_share_a_byte() -> None:
    codes, step, least = INT4.encode(torch.arange(16.0)[None])
    assert codes.tolist() == [[high << 4 | low for low, high in zip(range(0, 16, 2), range(1, 16, 2), strict=True)]]
    assert (step.tolist(), least.tolist()) == ([[1.0]], [[0.0]])


def test_int4_needs_an_even_width() -> None:
    with pytest.raises(Unsupported, match=r"15 channels.*int8"):
        INT4.widths(15, torch.float32)


@pytest.mark.parametrize("stored", CODECS.values(), ids=list(CODECS))
def test_a_codec_keeps_zeros_and_nan_and_is_as_wide_as_declared(stored: Codec) -> None:
    zero = torch.zeros(3, 8)
    assert torch.equal(stored.decode(stored.encode(zero), torch.float32), zero)
    assert stored.decode(stored.encode(torch.tensor([[1.0, float("nan")]])), torch.float32).isnan().any()
    assert not stored.decode(stored.encode(torch.tensor([[1.0, float("inf")]])), torch.float32).isfinite().all()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        parts = stored.encode(torch.ones(2, 5, 64, dtype=dtype))
        assert [(part.size(-1), part.dtype) for part in parts] == list(stored.widths(64, dtype))
        assert sum(part[0, 0].nbytes for part in parts) == stored.entry_bytes(64, dtype)
        assert stored.decode(parts, dtype).dtype == dtype
