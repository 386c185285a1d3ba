"""Error bounds of the codecs, and what they cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachemark.cache.codec import CODECS, INT8, NATIVE, Codec, codec
from cachemark.core.errors import UnknownName

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


@pytest.mark.parametrize("stored", CODECS.values(), ids=list(CODECS))
def test_a_zero_vector_stays_zero(stored: Codec) -> None:
    zero = torch.zeros(3, 8)
    assert torch.equal(stored.decode(stored.encode(zero), torch.float32), zero)


def test_int8_does_not_hide_what_is_not_a_number() -> None:
    assert INT8.decode(INT8.encode(torch.tensor([[1.0, float("nan")]])), torch.float32).isnan().all()
    assert not INT8.decode(INT8.encode(torch.tensor([[1.0, float("inf")]])), torch.float32).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", CODECS.values(), ids=list(CODECS))
def test_parts_are_as_wide_as_declared(stored: Codec, dtype: torch.dtype) -> None:
    parts = stored.encode(torch.ones(2, 5, 64, dtype=dtype))
    assert [(part.size(-1), part.dtype) for part in parts] == list(stored.widths(64, dtype))
    assert sum(part[0, 0].nbytes for part in parts) == stored.entry_bytes(64, dtype)
    assert stored.decode(parts, dtype).dtype == dtype


def test_bytes_count_codes_and_scales() -> None:
    assert NATIVE.entry_bytes(64, torch.bfloat16) == 128
    assert INT8.entry_bytes(64, torch.bfloat16) == 64 + 4


def test_only_native_may_be_read_in_place() -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for stored in CODECS.values():
        assert stored.exact is torch.equal(stored.decode(stored.encode(x), x.dtype), x)


def test_an_unknown_codec_names_the_nearest() -> None:
    assert codec("int8") is INT8
    with pytest.raises(UnknownName, match=r"Unknown codec 'int-8'\. Did you mean 'int8'"):
        codec("int-8")
