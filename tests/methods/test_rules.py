"""Evicting methods keep exactly what a second implementation of their rules keeps, after every pass."""

import itertools
from typing import Any

import pytest

from cachemark.cache.codec import NATIVE, Codec
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Layout, Site, Step, raster_steps
from cachemark.contract.method import Method
from cachemark.kit.common import calibration
from cachemark.kit.driver import Onlooker, RasterFeed, drive, layout_of, watched
from cachemark.methods.registry import METHODS

from .rules import RULES, Rule

Kept = dict[tuple[int, int, int, int], tuple[int, list[int]]]  # (pass, layer, row, K/V head) → (condition entries, visual tokens)

SEED = 7

MODES: dict[str, tuple[dict[str, Any], ...]] = {  # with a ring of one, a window that is all condition at first, and nothing protected
    "streaming": ({"B": 18}, {"B": 5}, {"B": 7, "sinks": 0}),
    "window": ({"B": 11}, {"B": 11, "keep_condition": False}, {"B": 2, "keep_condition": False}),
    "h2o": ({"B": 12}, {"B": 7}, {"B": 1}),
    "linear": ({"B": 18, "anchor": 6}, {"B": 18, "anchor": 5, "recent_lines": 1}, {"B": 24, "anchor": 4, "recent_lines": 2}, {"B": 12},
               {"B": 18, "anchor": 3, "score": "accumulated"}),
    "rkv": ({"B": 18}, {"B": 24}, {"B": 18, "alpha": 3, "mix_lambda": 0.6}, {"B": 18, "mix_lambda": 1.0}, {"B": 18, "mix_lambda": 0.0}),
    "snapkv": ({"B": 18}, {"B": 24, "alpha": 5, "pool": 3}, {"B": 18, "pool": 1}),
    "headkv": ({"B": 18, "window": 1, "tau": 0.4}, {"B": 24, "window": 1, "grouped": False, "alpha": 4},
               {"B": 24, "window": 2, "tau": 0.57, "share": 0.6, "score": "softmax", "start": 13}),
    "key_norm": ({"B": 18},), "keydiff": ({"B": 18},),
    "ssd_heads": ({"B": 12, "recent": 1}, {"B": 12}, {"B": 7, "recent": 3}, {"B": 1}, {"B": 18, "buffer": "line"},
                  {"B": 12, "buffer": "line", "recent": 6, "near": 2, "tau": 0.7}),
}
CASES = [(name, parameters) for name, modes in MODES.items() for parameters in modes]
IDS = ["-".join([name, *(f"{parameter}={value}" for parameter, value in parameters.items())]) for name, parameters in CASES]
LOSSY = [codec for codec in CODECS.values() if not codec.exact and not codec.grouped]


class Holding(Onlooker):
    def __init__(self) -> None:
        self.kept: Kept = {}

    def after_end(self, method: Method, step: Step) -> None:
        for site, slot in method.slots.items():
            for row, heads in enumerate(slot.visual[..., : slot.live[0]].tolist()):
                for head, entries in enumerate(heads):
                    visual = sorted(entry for entry in entries if entry >= 0)
                    self.kept[step.index, site.layer, row, head] = (entries.count(-1), visual)


def kept_by(method: Method, layout: Layout, feed: RasterFeed, codec: Codec) -> Kept:
    holding = Holding()
    drive(watched(method, holding), layout, feed, codec)
    return holding.kept


def kept_by_rule(rule: type[Rule], parameters: dict[str, Any], layout: Layout, feed: RasterFeed, codec: Codec) -> tuple[Kept, list[Rule]]:
    """What the rule keeps on the same vectors, as the codec gives them back, and the rule of every head."""
    heads = {(layer, row, head): rule({**parameters, "layer": layer, "head": head}, layout.lines, layout.line)
             for layer in range(layout.layers) for row in range(layout.rows) for head in range(layout.kv_heads)}  # fmt: skip
    contents: Kept = {}
    for step, layer in itertools.product(raster_steps(layout), range(layout.layers)):
        q, k, _ = feed.at(step, Site("decoder", layer))
        q, k = q.unflatten(1, (layout.kv_heads, -1)), codec.decode(codec.encode(k), k.dtype)
        for row, head in itertools.product(range(layout.rows), range(layout.kv_heads)):
            head_rule, queries, keys = heads[layer, row, head], q[row, head].double().numpy(), k[row, head].double().numpy()
            if step.count:
                head_rule.feed(step.first, queries[:, 0], keys[0])
            else:
                head_rule.begin(queries, keys)
            contents[step.index, layer, row, head] = (len(head_rule.condition), sorted(head_rule.keys))
    return contents, list(heads.values())


def check(name: str, parameters: dict[str, Any], layout: Layout, feed: RasterFeed, codec: Codec = NATIVE) -> list[Rule]:
    cls = METHODS.get(name)
    method: Method = cls.build({**calibration(cls, layout), **parameters})
    expected, heads = kept_by_rule(RULES[name], method.parameters(), layout, feed, codec)
    assert min(head.narrowest for head in heads) > 1e-6, "this data decides by less than fp32 can tell: choose another seed"
    assert any(len(visual) < index for (index, *_), (_, visual) in expected.items()), "nothing was evicted"
    assert kept_by(method, layout, feed, codec) == expected
    return heads


@pytest.mark.parametrize(("number", "name", "parameters"), [(number, *case) for number, case in enumerate(CASES)], ids=IDS)
def test_a_method_keeps_what_its_rules_keep(number: int, name: str, parameters: dict[str, Any]) -> None:
    """With own, shared and one head, and in turn with each codec."""
    for kv_heads, codec in ((4, NATIVE), (2, LOSSY[number % len(LOSSY)]), (1, NATIVE)):
        layout = layout_of((2, 2), kv_heads=kv_heads, layers=2)
        check(name, parameters, layout, RasterFeed(layout, seed=SEED), codec)


def test_tova_keeps_what_its_rule_keeps_and_evicts_the_same_tokens_from_all_heads_of_a_layer() -> None:
    layout = layout_of((2, 2), kv_heads=1, layers=2)
    check("tova", {"B": 12}, layout, RasterFeed(layout, seed=SEED))
    layout = layout_of((2, 2), kv_heads=4, layers=2)
    kept = kept_by(METHODS.get("tova").build({"B": 12}), layout, RasterFeed(layout, seed=SEED), NATIVE)
    by_row: dict[tuple[int, int, int], set[tuple[int, ...]]] = {}
    for (index, layer, row, _), (_, visual) in kept.items():
        by_row.setdefault((index, layer, row), set()).add(tuple(visual))
    assert {len(choices) for choices in by_row.values()} == {1}


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=IDS)
def test_of_equal_scores_the_older_goes(name: str, parameters: dict[str, Any]) -> None:
    """Queries and keys are zero, so that scores tie wherever they can."""
    layout = layout_of((2, 2), layers=1)
    feed = RasterFeed(layout)
    feed.q.zero_()
    feed.k.zero_()
    heads = check(name, parameters, layout, feed)
    if parameters in ({"B": 24, "anchor": 4, "recent_lines": 2}, {"B": 18, "anchor": 5, "recent_lines": 1}) or name == "rkv":
        assert all(head.ties for head in heads), "nothing has tied, so nothing is tested"


@pytest.mark.parametrize(("lines", "line", "name", "parameters"), [
    (5, 4, "linear", {"B": 12, "anchor": 2}), (8, 8, "linear", {"B": 32, "anchor": 8}), (8, 8, "rkv", {"B": 32}), (5, 4, "rkv", {"B": 12}),
    (3, 9, "h2o", {"B": 20}), (1, 12, "h2o", {"B": 4}), (12, 1, "linear", {"B": 5, "anchor": 2}), (12, 1, "rkv", {"B": 5, "alpha": 2}),
    (3, 9, "ssd_heads", {"B": 18, "buffer": "line"}), (12, 1, "ssd_heads", {"B": 5, "buffer": "line", "recent": 2})])  # fmt: skip
def test_other_shapes_of_an_image(lines: int, line: int, name: str, parameters: dict[str, Any]) -> None:
    layout = layout_of((1, 1), lines=lines, line=line, kv_heads=2, layers=1)
    check(name, parameters, layout, RasterFeed(layout, seed=SEED))


def test_every_method_that_evicts_has_a_rule() -> None:
    """Random eviction has a test of its own, and PyramidKV and Ada-KV are SnapKV with budgets of their own (test_evicting.py)."""
    built_in = [cls for cls in map(METHODS.get, METHODS) if cls.__module__.startswith("cachemark.")]
    evicting = {cls.name for cls in built_in if cls.evicts and "next-token" in cls.paradigms}
    assert evicting - {"random", "pyramidkv", "adakv"} <= set(RULES)
    assert set(MODES) == set(RULES) - {"tova"}  # whose rule is of one head
