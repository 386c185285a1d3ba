"""AMS-KV against its Algorithm 1 written out on lists of token numbers, and its parameters."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cachemark.cache.layout import Site, scale_steps, squares
from cachemark.core.errors import BadCalibration
from cachemark.core.spec import Sampling
from cachemark.kit.next_scale import LAYERS, SIDES, ScaleFeed, layout_of
from cachemark.methods.ams_kv import AMSKV, ThresholdWarning
from cachemark.methods.base.profiles import inter_scale
from cachemark.models.var import SIZES
from cachemark.roofline.memory import entries
from contracts.scales import contents_of

SIZES_OF = [side**2 for side in SIDES]
# Layer 0 is alike everywhere; layer 1 changes at the scales that overflow; layer 2 only where nothing overflows yet.
SIMILARITY = ((-0.001,) * 5, (-0.001, -0.001, -0.02, -0.02, -0.02), (-0.02, -0.001, -0.001, -0.001, -0.02))
LAYOUT = layout_of()


def informed(similarity: Sequence[Sequence[float]] = SIMILARITY, **parameters: Any) -> AMSKV:
    method = AMSKV.build(parameters)
    method.calibrate({"similarity": similarity})
    return method


def algorithm(c_min: int, c_max: int, condensed: int, alike: list[bool]) -> tuple[list[list[int]], bool]:
    """Return the tokens kept after each scale but the last, and whether the budget rose. ``alike[i]``: S of scale i is high enough."""
    anchor = sum(SIZES_OF[:condensed])
    tokens: list[int] = []
    history, budget, first = [], c_min, 0
    for i, size in enumerate(SIZES_OF[:-1]):
        own = list(range(first, first + size))
        first += size
        if size <= c_max:
            before, tokens = tokens, tokens + own
            if len(tokens) > budget:
                if budget == c_min and not alike[i]:
                    budget = c_max
                if size > budget:
                    tokens = before
                elif len(tokens) > budget:
                    tokens = tokens[:anchor] + tokens[len(tokens) - (budget - anchor) :]
        history.append(tokens)
    return history, budget == c_max


def held_by(method: AMSKV) -> tuple[list[dict[Any, list[int]]], AMSKV]:
    """The token numbers that each site holds after each scale but the last; all rows and heads agree."""
    contents, driven = contents_of(method, LAYOUT)
    assert all((numbers == numbers[:1, :1]).all() for by_site in contents for numbers in by_site.values())
    return [{site: numbers[0, 0].tolist() for site, numbers in by_site.items()} for by_site in contents[:-1]], driven


@pytest.mark.parametrize(("c_min", "c_max", "condensed"), [(21, 46, 2), (30, 46, 0), (10, 12, 1), (21, 21, 2), (12, 40, 2), (55, 91, 2)])
@pytest.mark.parametrize("theta", [-0.5, -1.6, -3.0])
def test_online_is_algorithm_1(c_min: int, c_max: int, condensed: int, theta: float) -> None:
    feed, raised = ScaleFeed(LAYOUT), 0
    kept_after, method = held_by(AMSKV(condensed, c_max, c_min, theta, decide="online"))
    for site in [Site("decoder", layer) for layer in range(LAYERS)]:
        keys = [feed.at(step, site)[1] for step in scale_steps(LAYOUT)]
        pairs = zip(pairwise(keys), pairwise(LAYOUT.scales), strict=True)
        alike = [True, *(float(inter_scale(k, before, grids)) >= theta for (before, k), grids in pairs)]
        history, larger = algorithm(c_min, c_max, condensed, alike)
        assert [contents[site] for contents in kept_after] == history
        raised += larger and c_max > c_min
        assert (method.budget[site] == c_max) is (larger or c_max == c_min)
    assert 0 < raised < LAYERS or (c_min, c_max, theta) != (21, 46, -1.6), "the threshold tells layers apart"
    assert raised == 0 or theta > -3.0


@pytest.mark.parametrize(("c_min", "c_max", "condensed"), [(21, 46, 2), (30, 46, 0), (10, 12, 1), (55, 91, 2)])
def test_with_a_list_a_layer_has_its_budget_throughout(c_min: int, c_max: int, condensed: int) -> None:
    kept_after, _ = held_by(AMSKV(condensed, c_max, c_min, demanding=[1]))
    for layer, budget in ((0, c_min), (1, c_max), (2, c_min)):
        history, _ = algorithm(budget, max(budget, c_max), condensed, [True] * len(SIDES))
        assert [contents[Site("decoder", layer)] for contents in kept_after] == history


def test_profile_finds_the_layers_that_the_rule_would_raise_and_defaults_are_the_papers() -> None:
    method = informed(c_min=21, c_max=46)
    method.resolve(LAYOUT)
    expected = [layer for layer, row in enumerate(SIMILARITY) if algorithm(21, 46, 2, [True, *(s >= -0.008 for s in row)])[1]]
    assert method.demanding == expected == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (method := informed()).resolve(LAYOUT)
    assert (method.c_max, method.c_min) == (1 + 4 + 25 + 36, 1 + 4 + 25)
    share = informed().own_budget(LAYOUT)
    assert share == Fraction(55 + 2 * 30, 3 * 55)
    assert AMSKV.parameters_for(share, LAYOUT) == {"entries": 3 * 55 * share}
    deep, similarity = replace(LAYOUT, layers=30), (SIMILARITY[1],) * 5 + (SIMILARITY[0],) * 25
    for more, demanding in (({}, [0, 1, 2, 3, 4]), ({"allocation": "uniform"}, [3, 9, 15, 21, 27])):
        (method := informed(similarity, c_min=21, c_max=46, **more)).resolve(deep)
        assert method.demanding == demanding


def test_a_budget_is_met_and_used() -> None:
    shares = (Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(3, 4), Fraction(1))
    for demanding, share in product(([], [1], [0, 1, 2]), shares):
        method = AMSKV(demanding=demanding, **AMSKV.parameters_for(share, LAYOUT))
        allowed = int(share * LAYERS * LAYOUT.cacheable)
        assert allowed - LAYERS < entries(method, LAYOUT) <= allowed
        assert min(method.c_max, method.c_min) > 5
    # VAR-d30 with five demanding layers is below a third
    shape = SIZES["d30"].layout(range(1), Sampling(cfg_scale=1.5, cfg_schedule="linear"), torch.float16)
    assert entries(AMSKV(demanding=[*range(5)]), shape) == 5 * 424 + 25 * 174 <= 0.32 * 30 * shape.visual


def test_a_similarity_of_another_model_is_refused_and_a_threshold_that_tells_nothing_apart_warns() -> None:
    for similarity in (SIMILARITY[:2], SIMILARITY * 2, tuple(layer[:3] for layer in SIMILARITY)):
        with pytest.raises(BadCalibration, match=f"{len(similarity)} layers at {len(similarity[0]) + 1} scales"):
            informed(similarity).resolve(LAYOUT)
    for theta, count in ((-1.0, "no"), (0.0, "every")):
        with pytest.warns(ThresholdWarning, match=f"makes {count} layer demanding; S was measured from -0.0200 to -0.0010"):
            informed(theta=theta).resolve(LAYOUT)


def test_similarity_is_minus_the_mean_square_of_what_bilinear_resizing_leaves() -> None:
    """By hand: from 1×1 to 2×2 every key is compared with the one before; equal ones give 0."""
    before, k = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 4, 8)
    assert float(inter_scale(k, before, squares((1, 2)))) == pytest.approx(-float((k - before).square().mean()), rel=1e-6)
    assert float(inter_scale(before.expand(-1, -1, 4, -1), before, squares((1, 2)))) == 0
    for grid in ((3, 3), (3, 5)):
        larger = F.interpolate(k.transpose(2, 3).reshape(6, 8, 2, 2), size=grid, mode="bilinear", align_corners=False)
        keys = larger.flatten(2).transpose(1, 2).reshape(2, 3, -1, 8)
        assert float(inter_scale(keys, k, ((2, 2), grid))) == pytest.approx(0, abs=1e-12)
