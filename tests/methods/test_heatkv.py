"""HeatKV: the plans of the published orders, and what wrong readings of the schedule would give."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from cachemark.cache.layout import Site, scale_steps
from cachemark.core.spec import Budget
from cachemark.kit.next_scale import layout_of
from cachemark.methods.base import calibrations
from cachemark.methods.heatkv import Gone, HeatKV, HeatPlan, Shape, orders_of, removed
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from contracts.scales import made

SIDES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
# Of the authors' code: a model, its limit, the most that layers hold, summed, pairs without a scale at the end, and SHA-256 of the plan.
PLANS = [
    ("infinity-2b", 131584, 228860, 494, "702f79fe0d2f29700302a48047549a3486acb313f1c5ef24beec24dc9a5ea432"),
    ("infinity-2b", 164480, 276288, 488, "ea7219eae02c70186a177e77e99a51c7a27c76d3287ef5d5c90e28ac1b6a79c8"),
    ("infinity-2b", 328960, 492232, 463, "19d6ecfc3947b83ad0e90b85bf365bbd93c5fc6c0f30beb39c9a27eee09e9680"),
    ("infinity-2b", 657920, 900400, 411, "de2246c61756316a5f532fc007667fa004fa899f283b46933249d35bee94218e"),
    ("infinity-2b", 1644800, 1967260, 257, "7f519f8a0c822634b3e7b19899d5d947d2c3361a3c93feccfa1a7d6acc809055"),
    ("infinity-8b", 359800, 560264, 1068, "060182b4fece9a7b904334d9337a9e140400ef8c9c83e61a07e7139408459080"),
    ("infinity-8b", 719600, 1019372, 1012, "4f2edc0e4a0835c91c8a898151c271f19de7da30328436be45ffad593a9d08f7"),
]


def shape_of(model: str) -> Shape:
    facts = calibrations.packaged("heatkv")[model]
    return Shape(tuple(side**2 for side in SIDES), facts["layers"], facts["heads"], 3)


def orders(model: str) -> Sequence[Sequence[int]]:
    return orders_of(calibrations.packaged("heatkv")[model], shape_of(model))


def hashed(shape: Shape, gone: Sequence[Gone]) -> str:
    """As the stored hashes were made: [target, source, layer, heads] of all that has gone."""
    rows = [[target, source, layer, heads] for target, sources in enumerate(gone) for source in range(shape.sink, target)
            for layer in range(shape.layers)
            if (heads := sorted(pair % shape.heads for pair in sources.get(source, ()) if pair // shape.heads == layer))]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@pytest.mark.parametrize(("model", "limit", "rooms", "gone_at_the_end", "expected"), PLANS, ids=lambda value: str(value)[:12])
def test_plans_of_the_published_orders(model: str, limit: int, rooms: int, gone_at_the_end: int, expected: str) -> None:
    shape = shape_of(model)
    gone = removed(shape, orders(model), limit)
    assert hashed(shape, gone) == expected
    assert {len(gone[-1][source]) for source in shape.sources} == {gone_at_the_end}
    assert sum(HeatPlan.without(shape, gone).rooms) == rooms


def test_no_more_than_the_limit_lives_at_any_time() -> None:
    """Summed by hand while a scale runs through the layers; without early removals it does not hold."""
    model, limit, *_ = PLANS[2]
    shape = shape_of(model)

    def fullest(early: bool) -> int:
        plan = HeatPlan.without(shape, removed(shape, orders(model), limit, early=early))
        most = 0
        for now, then in zip(plan.live, plan.live[1:], strict=False):
            moments = [sum(then[: layer + 1]) + sum(now[layer + 1 :]) for layer in range(shape.layers)]
            most = max(most, *moments)
        return most

    assert fullest(True) <= limit < fullest(False)


def test_a_budget_is_of_allocated_bytes_and_of_living_ones_where_it_is_asked() -> None:
    layout, half = layout_of(), Fraction(1, 2)
    everything = layout.cacheable * layout.layers * layout.kv_heads
    for counts in ("allocated", "live"):
        method = made(HeatKV, budget=half)
        method.counts, method.limit = counts, 0
        method.limit = method.fit(half, layout)["limit"]
        method.resolve(layout)
        allocated, live = sum(method.plan.rooms), max(map(sum, method.plan.live))
        assert live <= method.limit
        assert allocated <= everything // 2 if counts == "allocated" else method.limit == everything // 2
        assert method.own_budget(layout) == Fraction(allocated, everything)


def test_the_mean_over_heads_is_what_is_attended() -> None:
    method, layout = made(HeatKV), layout_of()
    method.resolve(layout)
    last = scale_steps(layout)[-1]
    cached = [method.attended(layout, Site("decoder", layer), last) - last.count for layer in range(layout.layers)]
    assert [4 * n - live for n, live in zip(cached, method.plan.live[-1], strict=True)] == [
        -live % 4 for live in method.plan.live[-1]]
    assert 0 < cached[0] < layout.cacheable


def published(**parameters: Any) -> dict[str, Any]:
    entry = MODELS.get("infinity-2b")
    return resolve(HeatKV, Budget.parse("1/10"), entry.shape(entry.presets["paper"], 1), parameters, "random:0/random:0")


def test_a_case_names_its_calibration_by_the_digest() -> None:
    named = published(calibration="infinity-2b", counts="live")
    digest = calibrations.fingerprint(calibrations.packaged("heatkv")["infinity-2b"])
    assert (named["calibration"], named["limit"]) == (digest, 328960)
    assert published(calibration=digest, counts="live") == named


def test_of_equal_scores_the_lower_head_goes_first() -> None:
    shape = Shape((1, 4, 9), 2, 2, 1)
    assert orders_of({"scas": [[[0, 1], [0, 1]], [[0, 1], [0, 0.5]]]}, shape) == [[3, 0, 2, 1]]
