"""SSD heads beyond their rule: profiles of heads by hand, packaged tables, and models that have none."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product, zip_longest

import pytest
import torch

from cachemark.cache.layout import Site, raster_steps
from cachemark.core.errors import Unsupported
from cachemark.core.spec import Budget
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.methods.base import calibrations
from cachemark.methods.base.profiles import LineProfile
from cachemark.methods.h2o import H2O
from cachemark.methods.heatkv import HeatKV
from cachemark.methods.ssd_heads import SSDHeads
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from cachemark.trial.child.profiles import calibrated

LAYOUT = layout_of((2, 2), lines=6, line=6, kv_heads=4, layers=2)


def weights_of(feed: RasterFeed, row: int, layer: int, head: int) -> list[list[float]]:
    """Return the attention of each query to the visual tokens, from every key."""
    fed = [(step, feed.at(step, Site("decoder", layer))) for step in raster_steps(LAYOUT)]
    keys = torch.cat([k for _, (_, k, _) in fed], 2)[row, head].double()
    return [(keys[: 3 + step.first] @ q[row, head, 0].double() / q.size(-1) ** 0.5).softmax(0)[2:].tolist() for step, (q, _, _) in fed[1:]]


def recency_by_hand(by_query: list[list[float]]) -> Iterator[tuple[int, float]]:
    """Yield how much of its attention each query pays to its latest lines, by their number."""
    for weights in by_query:
        for lines in range(1, LAYOUT.lines + 1):
            if len(weights) > lines * LAYOUT.line:
                yield lines, sum(weights[-lines * LAYOUT.line :]) / sum(weights)


def concentration_by_hand(by_query: list[list[float]]) -> Iterator[tuple[int, float]]:
    """Yield how much attention the queries of a line that ends pay to the strongest lines of tokens; lines have fewer than 8."""
    votes: list[float] = []
    for weights in by_query:
        votes = [vote + weight for vote, weight in zip_longest(votes, weights, fillvalue=0.0)]
        if len(weights) % LAYOUT.line == 0:
            strongest = sorted(votes, reverse=True)
            for lines in range(1, len(weights) // LAYOUT.line):
                yield lines, sum(strongest[: lines * LAYOUT.line]) / sum(votes)
            votes = []


def test_the_profile_is_the_mean_share_of_the_conditional_rows() -> None:
    profile, feeds = LineProfile("recency", "concentration"), [RasterFeed(LAYOUT, seed) for seed in (1, 2)]
    for feed in feeds:
        drive(profile, replace(LAYOUT, branches=(0, 1)), feed)

    def off(part: str, by_hand: Callable[[list[list[float]]], Iterator[tuple[int, float]]], rows: Sequence[int]) -> float:
        profiled = torch.tensor(profile.facts[part], dtype=torch.float64)
        shares = torch.ones_like(profiled)
        for layer, head in product(range(LAYOUT.layers), range(LAYOUT.kv_heads)):
            noted = [share for feed in feeds for row in rows for share in by_hand(weights_of(feed, row, layer, head))]
            for lines in {lines for lines, _ in noted}:
                shares[layer, head, lines - 1] = statistics.fmean(share for number, share in noted if number == lines)
        return float((profiled - shares).abs().max())

    for part in (("recency", recency_by_hand), ("concentration", concentration_by_hand)):
        assert off(*part, [0]) < 2e-6
        assert off(*part, [0, 1]) > 1e-3, "the unconditional row makes no difference, so nothing is tested"
    assert {name: profile.facts[name] for name in ("layers", "heads", "lines", "line")} == {"layers": 2, "heads": 4, "lines": 6, "line": 6}


@pytest.mark.parametrize("model", ["tiny-llamagen", "tiny-t2i"])
def test_the_packaged_table_of_a_bundled_model_has_both_kinds(model: str) -> None:
    entry = MODELS.get(model)
    layout = entry.shape(entry.presets["paper"], 1)
    method = SSDHeads(**resolve(SSDHeads, Budget.parse("1/4"), layout, {}, entry.identity(Request())))
    method.resolve(layout)
    assert 0 < sum(map(sum, method.spatial)) < layout.layers * layout.kv_heads
    assert layout.visual // 4 == method.B


def test_a_sample_is_calibrated_like_the_packaged_ten() -> None:
    calibration = calibrated(SSDHeads, "tiny-llamagen", Request(), subset="tune64", samples=1)
    packaged = next(facts for facts in calibrations.packaged("ssd_heads").values() if facts["model"] == "tiny-llamagen")
    assert calibration["weights"] == packaged["weights"]
    far = (torch.tensor(calibration["recency"]) - torch.tensor(packaged["recency"])).abs()
    assert 0 < far.max() < 0.3
    assert far.mean() < 0.05


def test_a_model_of_another_family_is_not_calibrated() -> None:
    for method, model, words in (
        (SSDHeads, "tiny-var", "tiny-var is a next-scale model. Name a next-token model"),
        (HeatKV, "tiny-llamagen", "tiny-llamagen is a next-token model and has no scales. Name a next-scale model"),
        (H2O, "tiny-llamagen", "h2o needs no calibration")):
        with pytest.raises(Unsupported, match=words):
            calibrated(method, model, Request(), subset="tune64", samples=1)
