"""Rivals in next-scale models: on token numbers, plans and budgets of HeatKV and ScaleKV, and the recorded table of budgets in bytes."""

import hashlib
import itertools
import json
import re
from fractions import Fraction
from typing import Any

import pytest
import torch

from cachemark.cache.layout import Layout, Site, scale_steps
from cachemark.contract.method import Method
from cachemark.core.spec import Budget
from cachemark.kit.next_scale import LAYERS, SIDES, ScaleFeed, layout_of
from cachemark.methods.base import calibrations
from cachemark.methods.base.calibrations import even
from cachemark.methods.base.profiles import stated_scales
from cachemark.methods.hack import HACK
from cachemark.methods.hackpp import HACKPlusPlus
from cachemark.methods.heatkv import HeatKV, HeatPlan, Shape, orders_of, removed
from cachemark.methods.registry import METHODS
from cachemark.methods.scale_groups import ScaleGroups
from cachemark.methods.scalekv import LayerBudgets, ScaleKV, drafters_of
from cachemark.methods.streaming import Streaming
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from contracts.scales import contents_of
from studies.papers.entry_counts import entry_counts
from tools.pages.results import recorded

SITES = [Site("decoder", layer) for layer in range(LAYERS)]
SIZES = [side**2 for side in SIDES]
INFINITY_SIDES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
# of the recorded table that sets the papers' percentages beside ours, computed row by row
ROWS = re.findall(r"^\| `(heatkv|scalekv|hackpp|hack)` \| `([\w-]+)` \| (\d+) %[^|]*" + 3 * r"\| ([\d.]+) % " + r"\| ([\d.]+) MB \|$",
                  recorded("published-budgets-in-bytes"), re.M)


@pytest.mark.parametrize(("name", "B", "sinks"), [
    ("window", 35, 0), ("window", 7, 0), ("streaming", 35, 5), ("streaming", 6, 5), ("streaming", 20, 0), ("streaming", 20, 14)])
def test_the_first_and_the_latest_stay(name: str, B: int, sinks: int) -> None:
    method, tokens = METHODS.get(name).build({"B": B, **({"sinks": sinks} if name == "streaming" else {})}), list[int]()
    for contents, size, end in zip(contents_of(method, layout_of())[0], SIZES[:-1], itertools.accumulate(SIZES), strict=False):
        tokens = [*tokens, *range(end - size, end)]
        if len(tokens) > B:
            tokens = tokens[:sinks] + tokens[len(tokens) - (B - sinks) :]
        assert all((numbers.long() == torch.tensor(tokens)).all() for numbers in contents.values())


def test_the_default_of_sinks_is_that_of_the_family_and_scales_are_in_groups() -> None:
    assert Streaming.parameters_for(Fraction(1, 2), layout_of()) == {"B": 27, "sinks": 5}
    assert Streaming.parameters_for(Fraction(1, 2), Layout("next-token", (1,), 6, 6, 4, 4, 16, 2)) == {"B": 18}
    groups = [ScaleGroups().group(scale, 5) for scale in range(6)]
    assert groups == ["condensed", "condensed", "intermediate", "local", "local", "own"]
    assert (ScaleGroups().group(1, 2), ScaleGroups().group(2, 3)) == ("condensed", "local")


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_heavy_hitters_are_those_with_most_mass_per_query(kv_heads: int) -> None:
    """H2O's rule by hand: full matrices, one row and head at a time."""
    layout = layout_of(kv_heads)
    feed, steps, kept_after = ScaleFeed(layout), scale_steps(layout), contents_of(METHODS.get("h2o")(B=20), layout)[0]
    for site, row, head in itertools.product(SITES, range(layout.rows), range(layout.kv_heads)):
        keys = torch.cat([feed.at(step, site)[1] for step in steps], 2)[row, head].double()
        tokens: list[int] = []
        mass, queries = torch.zeros(2, layout.visual, dtype=torch.float64)
        for step in steps[:-1]:
            tokens = tokens + list(range(step.first, step.first + step.count))
            q = feed.at(step, site)[0].unflatten(1, (layout.kv_heads, -1))[row, head].double()
            mass[tokens] += (q @ keys[tokens].T * layout.head_dim**-0.5).softmax(-1).sum((0, 1))
            queries[tokens] += step.count
            tokens = sorted(sorted(tokens, key=lambda i: float(mass[i] / queries[i]), reverse=True)[:20])
            assert sorted(kept_after[step.index][site][row, head].tolist()) == tokens


def test_random_is_uniform_over_what_was_seen() -> None:
    """20 of 55 tokens stay, in shares that follow from the draws alone: those of the last scale take part in one, earlier ones in more."""
    layout = layout_of(rows=200)
    contents = contents_of(METHODS.get("random")(B=20), layout)[0][4]
    shares = torch.stack([torch.nn.functional.one_hot(n.long(), 55).sum(-2).double().mean((0, 1)) for n in contents.values()]).mean(0)
    third, fourth = 20 / 30, 20 / 45  # 14 + 16 seen after the fourth scale, 20 + 25 after the fifth
    expected = torch.tensor([third * fourth] * 30 + [fourth] * 25, dtype=torch.float64)
    draws = 200 * layout.kv_heads * LAYERS
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt()).all()
    first, second = (contents[site].sort(-1).values for site in SITES[:2])
    assert not torch.equal(first, second), "layers share their draws"
    assert not torch.equal(first[:, 0], first[:, 1]), "heads share their draws"


@pytest.mark.parametrize(("model", "limit", "rooms", "gone_at_the_end", "expected"), [
    ("infinity-2b", 328960, 492232, 463, "19d6ecfc3947b83ad0e90b85bf365bbd93c5fc6c0f30beb39c9a27eee09e9680"),
    ("infinity-8b", 719600, 1019372, 1012, "4f2edc0e4a0835c91c8a898151c271f19de7da30328436be45ffad593a9d08f7")])
def test_plans_of_the_published_orders(model: str, limit: int, rooms: int, gone_at_the_end: int, expected: str) -> None:
    """Of the authors' code: a limit, the most that layers hold, summed, pairs without a scale at the end, and SHA-256 of the plan."""
    facts = calibrations.packaged("heatkv")[model]
    shape = Shape(tuple(side**2 for side in INFINITY_SIDES), facts["layers"], facts["heads"], 3)
    gone = removed(shape, orders_of(facts, shape), limit)
    rows = [[target, source, layer, heads] for target, sources in enumerate(gone) for source in range(shape.sink, target)
            for layer in range(shape.layers)  # as the stored hashes were made
            if (heads := sorted(pair % shape.heads for pair in sources.get(source, ()) if pair // shape.heads == layer))]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest() == expected
    assert {len(gone[-1][source]) for source in shape.sources} == {gone_at_the_end}
    assert sum(HeatPlan.without(shape, gone).rooms) == rooms


def infinity(cls: type[Method], budget: str, **parameters: Any) -> dict[str, Any]:
    entry = MODELS.get("infinity-2b")
    return resolve(cls, Budget.parse(budget), entry.shape(entry.presets["paper"], 1), parameters, "random:0/random:0")


def test_a_case_names_its_calibration_by_the_digest_and_of_equal_scores_the_lower_head_goes_first() -> None:
    named = infinity(HeatKV, "1/10", calibration="infinity-2b", counts="live")
    digest = calibrations.fingerprint(calibrations.packaged("heatkv")["infinity-2b"])
    assert (named["calibration"], named["limit"]) == (digest, 328960)
    assert infinity(HeatKV, "1/10", calibration=digest, counts="live") == named
    assert orders_of({"scas": [[[0, 1], [0, 1]], [[0, 1], [0, 0.5]]]}, Shape((1, 4, 9), 2, 2, 1)) == [[3, 0, 2, 1]]


@pytest.mark.parametrize(("model", "rooms", "cuts"), [
    ("infinity-2b", 29445, [(920, 632), (1490, 594), (2510, 526), (4100, 420), (6385, 465)]),
    ("infinity-8b", 41873, [(909, 629), (1464, 584), (2463, 503), (4054, 374), (6200, 200)])])
def test_the_rule_gives_the_published_budgets(model: str, rooms: int, cuts: list[tuple[int, int]]) -> None:
    """Of the authors' files for 10 %, behind scales 7 … 11: the drafters' budget and that of the others."""
    facts = calibrations.packaged("scalekv")[model]
    plan = LayerBudgets(tuple(side**2 for side in INFINITY_SIDES), facts["layers"], 650, drafters_of(facts, 0), 16)
    assert plan.first == 7
    assert [(max(row), min(row)) for row in plan.budgets] == cuts
    assert {sum(row) for row in plan.budgets} == {650 * facts["layers"]}
    assert sum(plan.rooms) == rooms


def test_a_budget_is_of_allocated_bytes_and_of_living_ones_where_it_is_asked_and_drafters_look_least() -> None:
    assert infinity(ScaleKV, "0.1012", calibration="infinity-2b", counts="live")["mean"] == 650
    entry = MODELS.get("infinity-2b")
    layout = entry.shape(entry.presets["paper"], 1)
    method = ScaleKV.build(infinity(ScaleKV, "1/4", calibration="infinity-2b"))
    assert method.own_budget(layout) <= Fraction(1, 4) < ScaleKV(calibration="infinity-2b", mean=method.mean + 1).own_budget(layout)
    # drafters are the layers that look least at themselves and few, by z-scores: the second is lowest in both, the third in one
    facts = {"scales": [1, 2, 3], "asi": [[0.9, 0.8], [0.1, 0.2], [0.8, 0.1], [0.9, 0.9]]}
    assert drafters_of(facts, 1) == ((1,),) * 3
    assert drafters_of(facts, 2) == ((1, 2),) * 3


def of_row(name: str, layout: Layout, model: str, percent: int) -> Method:
    if name == "heatkv":
        return HeatKV(calibration=model, counts="live", limit=layout.layers * layout.kv_heads * layout.cacheable * percent // 100)
    if name == "scalekv":
        return ScaleKV(calibration=model, mean={4: 265, 10: 650, 20: 1300}[percent])  # entries a layer
    if name == "hackpp":
        return HACKPlusPlus(calibration=model if model == "tiny-var" else even(layout, name), mean=percent * layout.visual // 100)
    variance = [[layer + head / layout.kv_heads for head in range(layout.kv_heads)] for layer in range(layout.layers)]
    facts = {"model": model, "layers": layout.layers, "heads": layout.kv_heads, "scales": stated_scales(layout), "variance": variance}
    return HACK(calibration=calibrations.remember("hack", facts), mean=(100 - percent) * layout.visual // 100)


def test_every_row_is_what_arithmetic_gives() -> None:
    assert len(ROWS) == 21
    for name, model, theirs, *printed in ROWS:
        entry = MODELS.get(model)
        layout = entry.shape(entry.presets["paper"], 1)
        counts = entry_counts(of_row(name, layout, model, int(theirs)), layout)
        shares = [f"{100 * entries / counts.full:.1f}" for entries in (counts.live, counts.peak, counts.allocated)]
        megabytes = counts.allocated * layout.head_dim * 2 * 2 * layout.rows / 1e6
        assert [*shares, f"{megabytes:.0f}" if megabytes >= 1 else f"{megabytes:.2f}"] == printed, (name, model)
