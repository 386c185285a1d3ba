"""The recorded table that sets the papers' percentages beside ours, computed row by row."""

from __future__ import annotations

import re

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.methods.base import calibrations
from cachemark.methods.base.calibrations import even
from cachemark.methods.base.profiles import stated_scales
from cachemark.methods.hack import HACK
from cachemark.methods.hackpp import HACKPlusPlus
from cachemark.methods.heatkv import HeatKV
from cachemark.methods.scalekv import ScaleKV
from cachemark.models.registry import MODELS
from studies.papers.entry_counts import entry_counts
from tools.pages.results import recorded

MEANS = {4: 265, 10: 650, 20: 1300}  # of ScaleKV, entries a layer
ROWS = re.findall(r"^\| `(heatkv|scalekv|hackpp|hack)` \| `([\w-]+)` \| (\d+) %[^|]*" + 3 * r"\| ([\d.]+) % " + r"\| ([\d.]+) MB \|$",
                  recorded("published-budgets-in-bytes"), re.M)


def computed(name: str, model: str, percent: int) -> tuple[int, int, Layout, Method]:
    """Return the live and the allocated entries of all layers and heads, and the method."""
    entry = MODELS.get(model)
    layout = entry.shape(entry.presets["paper"], 1)
    pairs = layout.layers * layout.kv_heads
    if name == "heatkv":
        heat = HeatKV(calibration=model, counts="live", limit=pairs * layout.cacheable * percent // 100)
        heat.resolve(layout)
        return max(map(sum, heat.plan.live)), sum(heat.plan.rooms), layout, heat
    if name == "scalekv":
        scaled = ScaleKV(calibration=model, mean=MEANS[percent])
        scaled.resolve(layout)
        return max(map(sum, scaled.plan.retained)) * layout.kv_heads, sum(scaled.plan.rooms) * layout.kv_heads, layout, scaled
    if name == "hackpp":
        plus = HACKPlusPlus(calibration=model if model == "tiny-var" else even(layout, name), mean=percent * layout.visual // 100)
        plus.resolve(layout)
        sums = [sum(plus.plan.of_layer(sizes, layer) for layer in range(layout.layers)) for sizes in plus.plan.retained]
        return max(sums), sum(plus.plan.rooms), layout, plus
    variance = [[layer + head / layout.kv_heads for head in range(layout.kv_heads)] for layer in range(layout.layers)]
    facts = {"model": model, "layers": layout.layers, "heads": layout.kv_heads, "scales": stated_scales(layout), "variance": variance}
    hack = HACK(calibration=calibrations.remember("hack", facts), mean=(100 - percent) * layout.visual // 100)
    hack.resolve(layout)
    few, many = hack.classes.few, hack.classes.pairs - hack.classes.few
    sizes = few * min(hack.small, layout.cacheable) + many * min(hack.large, layout.cacheable)
    return sizes, sizes, layout, hack


def test_every_row_is_what_arithmetic_gives() -> None:
    assert len(ROWS) == 21
    for row in ROWS:
        check(*row)


def check(name: str, model: str, theirs: str, lives: str, high: str, allocated: str, size: str) -> None:
    live, rooms, layout, method = computed(name, model, int(theirs))
    everything = layout.layers * layout.kv_heads * layout.cacheable
    assert (f"{100 * live / everything:.1f}", f"{100 * rooms / everything:.1f}") == (lives, allocated)
    counts = entry_counts(method, layout)
    assert (counts.live, counts.allocated, counts.full) == (live, rooms, everything)
    assert f"{100 * counts.peak / everything:.1f}" == high
    megabytes = rooms * layout.head_dim * 2 * 2 * layout.rows / 1e6
    assert (f"{megabytes:.0f}" if megabytes >= 1 else f"{megabytes:.2f}") == size
