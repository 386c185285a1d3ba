"""Bytes on paper: the published baselines to the printed digits, and what a method allocates to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.papers.entry_counts import kv_bytes
from benchmarks.papers.published_sizes import MIXED, PAPER_UNIT, PublishedSize
from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout
from cachemark.core.spec import Sampling
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.full import Full
from cachemark.models.var import SIZES, VAR
from cachemark.models.vision.msvq import MultiScaleQuantizer
from cachemark.roofline.memory import entries

SAMPLING = Sampling(cfg_scale=1.5, cfg_schedule="linear")


def printed_as(figure: str) -> PublishedSize:
    return PublishedSize("", "", "", 1, "full", figure, "GB", "1000 MiB")


def shape(size: str, batch: int) -> Layout:
    return SIZES[size].layout(range(batch), SAMPLING, torch.float16)


@pytest.mark.parametrize(("size", "batch", "printed", "exact"), [
    ("d30", 50, "22.41", 23_500_800_000), ("d30", 16, "7.17", 7_520_256_000), ("d36-512", 25, "53.15", 55_738_368_000),
])  # fmt: skip
def test_published_baselines_follow_to_the_digit(size: str, batch: int, printed: str, exact: int) -> None:
    layout = shape(size, batch)
    result = kv_bytes(layout, entries(Full(store_last=True), layout), MIXED)
    assert result == exact
    assert printed_as(printed).agrees(result)
    assert not printed_as(printed).agrees(kv_bytes(layout, entries(Full(), layout), MIXED))


def test_agreement_is_rounding_or_cutting_off_and_nothing_wider() -> None:
    claim = printed_as("53.15")
    assert claim.agrees(int(53.1500001 * PAPER_UNIT))
    assert claim.agrees(int(53.1599 * PAPER_UNIT)), "cut off"
    assert claim.agrees(int(53.1451 * PAPER_UNIT)), "rounded"
    assert not claim.agrees(int(53.1601 * PAPER_UNIT))
    assert not claim.agrees(int(53.1449 * PAPER_UNIT))
    assert claim.interval == pytest.approx((53.16 - 53.145) * PAPER_UNIT)
    assert replace(claim, printed="85").interval == pytest.approx((86 - 84.5) * PAPER_UNIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [Full(), Full(store_last=True), AMSKV(demanding=[1]), AMSKV(demanding=[0, 2], condensed=0)])
def test_slots_of_d30_at_reduced_depth_are_the_formula_to_the_byte(method: Full | AMSKV, dtype: torch.dtype) -> None:
    """The width and the scales of d30 with three of its thirty blocks; only the slots are allocated, nothing is computed."""
    layout = replace(shape("d30", 2), layers=3, dtype=dtype)
    with torch.device("meta"):
        model = VAR(replace(SIZES["d30"], depth=3), MultiScaleQuantizer(SIZES["d30"].sides, 4096, 32))
    memory = Memory()
    values = entries(method, layout)
    method.begin(layout, model.sites, memory)
    widths = dtype.itemsize, dtype.itemsize
    assert memory.nbytes("slots") == kv_bytes(layout, values, widths)
    assert memory.nbytes("workspace") == kv_bytes(layout, layout.visual if values < 3 * layout.visual else 0, widths)
