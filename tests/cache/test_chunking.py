"""Large storage is processed in chunks: equal results, little temporary memory."""

from fractions import Fraction

import pytest
import torch

from cachemark.cache import bank as module
from cachemark.cache.arena import Memory
from cachemark.cache.bank import TRANSIENT, chunks
from cachemark.cache.layout import Layout, Site, raster_steps
from cachemark.kit.common import calibration
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.machine.memory import TensorPeak
from cachemark.methods.registry import METHODS

LIMIT = 256 * 2**20


@pytest.mark.parametrize(("sites", "rows", "room"), [(1, 1, 1), (3, 5, 1), (3, 5, 2), (3, 5, 5), (3, 5, 7), (3, 5, 10), (4, 6, 99)])
def test_every_row_of_every_site_is_in_one_portion(sites: int, rows: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRANSIENT", room * 10 + 9)
    visits = torch.zeros(sites, rows)
    for some, some_rows in chunks(sites, rows, 10):
        part = visits[some, some_rows]
        assert 0 < part.numel() <= room
        assert part.size(0) == 1 or part.size(1) == rows, "one stretch of storage"
        part += 1
    assert (visits == 1).all()


@pytest.mark.parametrize("condition", [(1, 1, 1), (1, 1, 3)])
@pytest.mark.parametrize(("name", "parameters"), [("linear", {}), ("linear", {"score": "accumulated"}), ("rkv", {}), ("h2o", {}),
                                                  ("ssd_heads", {"buffer": "line"})])
def test_chunks_change_nothing(name: str, parameters: dict[str, str], condition: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(condition, kv_heads=2)
    cls, feed = METHODS.get(name), Feed(layout)
    outputs = []
    for limit in (TRANSIENT, 10_000, 1):
        monkeypatch.setattr(module, "TRANSIENT", limit)
        values = {**calibration(cls, layout), **cls.parameters_for(Fraction(1, 2), layout), **parameters}
        outputs.append(drive(cls.build(values), layout, feed))
    for other in outputs[1:]:
        assert all(torch.equal(other[where], out) for where, out in outputs[0].items())


def xl(layers: int) -> Layout:
    """LlamaGen-XL with 36 blocks, 24 × 24, batch 256 with guidance, bf16, on the meta device."""
    rows = 512
    return Layout("next-token", (1,) * rows, 24, 24, 20, 20, 64, layers, tuple(range(rows)), (0,) * rows, torch.bfloat16, "meta")


@pytest.mark.parametrize(("name", "layers"), [("linear", 36), ("rkv", 2)])
def test_evicting_a_line_at_the_size_of_the_paper_needs_little_on_the_way(name: str, layers: int) -> None:
    """R-KV goes from block to block, so two show what 36 need."""
    assert on_the_way(name, Fraction(1, 4), xl(layers)) < LIMIT


def on_the_way(name: str, ratio: Fraction, layout: Layout) -> int:
    """Bytes that one eviction of a line needs beside what the memory holds and the places that it finds."""
    memory = Memory("meta")
    cls = METHODS.get(name)
    method = cls.build(cls.parameters_for(ratio, layout))
    method.begin(layout, [Site("decoder", i) for i in range(layout.layers)], memory)
    step = next(s for s in raster_steps(layout) if "line" in s.edges and s.first + 1 == method.B)
    (bank,) = method.banks
    for slot in bank.slots:
        slot.live = [layout.longest_condition + method.B]
    with TensorPeak(tensor for _, tensor in memory.tensors.values()) as watch:
        method.evict(step, bank)
    assert bank.live == [layout.longest_condition + method.B - layout.line]
    places = 8 * layout.layers * layout.rows * layout.kv_heads * layout.line
    return watch.peak - places
