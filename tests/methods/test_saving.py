"""Methods that save computation in next-scale models: oracles of their own, parameters, and plans."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadBudget, BadParameter, BadPlan
from cachemark.core.spec import Case, Sampling
from cachemark.kit.saving import SAMPLING, SEEDS, model
from cachemark.methods.fastvar import deviation, highpass
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.models.vision.maps import ABSENT
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from support.examples import short_plan

NAMES = tuple(SAMPLING)


def generate(name: str, method: Method, forced: Tensor | None = None, sampling: Sampling | None = None) -> tuple[Tensor, list[Tensor]]:
    logits = list[Tensor]()
    tokens = model(name).generate(torch.arange(len(SEEDS)), SEEDS, method, sampling or SAMPLING[name], Memory(), forced=forced,
                                  see=lambda first, scale: logits.append(scale.clone()))
    return tokens, logits


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_generated_scales_have_the_tokens_of_the_full_cache_and_the_others_add_nothing(name: str, count: int) -> None:
    full, full_logits = generate(name, Method())
    tokens, logits = generate(name, FewerScales(count))
    generated = model(name).layout(SEEDS, SAMPLING[name]).ending(5 - count).visual
    assert torch.equal(tokens[:, :generated], full[:, :generated])
    assert bool((tokens[:, generated:] == ABSENT).all())
    assert all(map(torch.equal, logits, full_logits))
    assert len(logits) == len(full_logits) - count
    quantizer = model(name).quantizer
    expected = quantizer.empty(len(full))
    for scale, part in enumerate(quantizer.split(full)[: 5 - count]):
        expected = quantizer.add(expected, part, scale)
    assert torch.equal(quantizer.restore(tokens), expected)
    assert not torch.allclose(quantizer.restore(full), expected)


@pytest.mark.parametrize("start", [0, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_logits_without_guidance_are_the_conditional_ones(name: str, start: int) -> None:
    """Along the full cache's tokens: a generation without guidance computes the conditional rows alone."""
    full, guided = generate(name, Method())
    without = replace(SAMPLING[name], cfg_scale=0.0)
    _, conditional = generate(name, Method(), full, without)
    _, logits = generate(name, GuidanceOff(start), full)
    for scale, own in enumerate(logits):
        assert torch.allclose(own, guided[scale] if scale < start else conditional[scale], atol=1e-4)
    assert not any(torch.allclose(g, c, atol=1e-2) for g, c in zip(guided[1:], conditional[1:], strict=True))
    with pytest.raises(BadParameter, match=r"this sampling has no guidance, .* raise cfg_scale"):
        generate(name, GuidanceOff(start), full, without)


@pytest.mark.parametrize("name", NAMES)
def test_entries_of_unconditional_rows_end(name: str) -> None:
    full, method = Method(), GuidanceOff(3)
    generate(name, full)
    generate(name, method)
    layout = model(name).layout(SEEDS, SAMPLING[name])
    tokens, row = layout.scale_tokens, 2 * layout.layers * layout.heads * layout.head_dim * 4
    assert method.live_bytes == len(SEEDS) * sum(tokens[:4]) * row
    assert full.live_bytes == 2 * method.live_bytes
    assert method.logical_bytes == max(2 * sum(tokens[:3]), sum(tokens[:4])) * len(SEEDS) * row


def test_a_score_is_of_its_map() -> None:
    flat = torch.ones(2, 16, 3)
    assert not deviation(flat).any()
    assert not highpass(flat, (4, 4)).any()
    step = torch.cat((torch.zeros(1, 8, 3), torch.ones(1, 8, 3)), 1)  # the upper half of a map of 4×4
    assert len(deviation(step).unique()) == 1, "every token is as far from the mean"
    for grid in ((4, 4), (2, 8)):
        texture = highpass(step, grid)[0].view(grid)
        assert texture[grid[0] // 2 - 1 : grid[0] // 2 + 1].min() > 0, "the edge stands out"
        assert texture.sum() == texture[grid[0] // 2 - 1 : grid[0] // 2 + 1].sum()


def cases(folder: Path, methods: str, budgets: str = '"1/2"', model: str = "tiny-var") -> list[Case]:
    path = folder / "plan.toml"
    path.write_text(short_plan(f'model = "{model}"\nmethods = [{methods}]\nbudgets = [{budgets}]'))
    return [planned.case for planned in expand(load(str(path))) if planned.case.role == "candidate"]


def test_the_kind_of_a_budget_is_a_part_of_a_case_and_a_share_of_fewer_scales_is_one(tmp_path: Path) -> None:
    (saving,), (storing,) = (cases(tmp_path, method) for method in ('"fewer_scales"', '"window"'))
    assert (saving.label, saving.budget_kind, saving.stated_budget) == ("fewer_scales 1/2 FLOPs", "FLOPs", "1/2 FLOPs")
    assert (storing.label, storing.stated_budget) == ("window 1/2", "1/2")
    assert "budget_kind" not in storing.to_json()
    assert saving.to_json()["budget_kind"] == "FLOPs"
    assert Case.from_json(saving.to_json()) == saving
    assert replace(saving, budget_kind="entries").key != saving.key
    assert replace(saving, budget_kind="entries").cell == saving.cell
    named = '{ name = "fewer_scales", count = 1 }'
    own, other = cases(tmp_path, f'{named}, {{ name = "fastvar", base = [0.4, 0.5, 0.6, 0.75], layers = [0, 5] }}', named)
    assert own.stated_budget == other.stated_budget == "4441/10000 FLOPs"
    assert own.parameters == {"count": 1}


@pytest.mark.parametrize(("methods", "budgets", "words"), [
    ('"window", "fastvar"', '"1/2"', "A budget of window is a fraction of the entries, and one of fastvar of the FLOPs. Put them into two"),
    ('"fewer_scales"', '"ams_kv"', "A budget of fewer_scales is a fraction of the FLOPs, and one of ams_kv of the entries. Put them into"),
    ('"fewer_scales"', '{ name = "fewer_scales", count = 1, codec = "int8" }',
     "A budget of fewer_scales is a share of the FLOPs, and a codec saves none"),
    ('"fastvar + ams_kv"', '"1/2"', "'fastvar + ams_kv' names 2 methods, but a case has one"),
    ('"fewer_scales+guidance_off"', '"1/2"', "'fewer_scales+guidance_off' names 2 methods, but a case has one")])  # fmt: skip
def test_a_block_has_budgets_of_one_kind_and_a_case_one_method(tmp_path: Path, methods: str, budgets: str, words: str) -> None:
    with pytest.raises((BadPlan, BadBudget), match=rf"plan\.toml:\d+: .*{re.escape(words)}") as raised:
        cases(tmp_path, methods, budgets)
    assert "\n" not in str(raised.value)
