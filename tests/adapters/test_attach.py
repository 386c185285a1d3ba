"""Models of transformers with an attached cache generate the tokens of our models with the same method, weights and random numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

import cachemark as cm
from cachemark.cache.arena import Memory
from cachemark.contract.heads import HeadGroups
from cachemark.core.spec import Budget, Sampling
from cachemark.methods.registry import METHODS
from cachemark.models.raster import RasterModel
from support.later import later

transformers, tiny = later("transformers"), later("adapters.tiny")
GUIDANCE = 3.0
EVICTING = ("window", "streaming", "h2o", "rkv", "linear", "random")
IN_TURN = [("full", "1", False), ("pyramidkv", "1/2", True),  # in turn with either budget, greedy or sampled
           *((name, ("1/2", "1/4")[number // 2 % 2], bool(number % 2)) for number, name in enumerate(EVICTING))]
HEAD_DIM, FP32 = 8, 4


@pytest.fixture(scope="module")
def janus() -> tuple[Any, RasterModel]:
    theirs = tiny.their_janus()
    return theirs, tiny.our_janus(theirs)


@pytest.fixture(scope="module")
def emu3() -> tuple[Any, RasterModel]:
    theirs = tiny.their_emu3()
    return theirs, tiny.our_emu3(theirs)


def expected(ours: RasterModel, name: str, budget: str, rows: int, temperature: float, guidance: float = GUIDANCE) -> Tensor:
    sampling, samples = Sampling(cfg_scale=guidance, temperature=temperature), list(range(rows))
    cls = METHODS.get(name)
    method = cls.build(cls.parameters_for(Budget.parse(budget).ratio, ours.layout(samples, sampling, samples)))
    return ours.generate(torch.tensor(samples), samples, method, sampling, Memory())


def drawn(monkeypatch: pytest.MonkeyPatch, rows: int, sampled: bool) -> dict[str, Any]:
    """Return arguments of ``generate``; if ``sampled``, it draws with the random numbers of our models."""
    if sampled:
        monkeypatch.setattr(torch, "multinomial", tiny.keyed_multinomial(range(rows)))
    return {"do_sample": sampled, "top_k": 0} if sampled else {"do_sample": False}


def janus_tokens(model: Any, rows: int, **settings: Any) -> Tensor:
    inputs = tiny.padded(tiny.PROMPTS[:rows])
    return model.generate(**inputs, generation_mode="image", guidance_scale=GUIDANCE, **settings)


def emu3_tokens(model: Any, rows: int, guidance: float = GUIDANCE, **settings: Any) -> Tensor:
    inputs = tiny.padded(tiny.PROMPTS[:rows])
    out = model.generate(**inputs, **tiny.emu3_settings(rows, guidance), **settings)[:, inputs["input_ids"].size(1) :]
    assert out[:, -3:].tolist() == [[tiny.FRAME_END, tiny.IMAGE_END, tiny.END]] * rows
    return out[:, :-3]


# -- tokens ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "budget", "sampled"), IN_TURN)
def test_janus_generates_the_tokens_of_our_model(
    janus: tuple[Any, RasterModel], monkeypatch: pytest.MonkeyPatch, name: str, budget: str, sampled: bool,
) -> None:
    theirs, ours = janus
    with cm.attach(theirs, name, budget) as cache:
        tokens = janus_tokens(theirs, 2, **drawn(monkeypatch, 2, sampled), past_key_values=cache)
    assert torch.equal(tokens, expected(ours, name, budget, 2, float(sampled)))


@pytest.mark.parametrize(("name", "budget", "sampled"), [(name, budget, not sampled) for name, budget, sampled in IN_TURN[::2]])
def test_emu3_generates_the_tokens_of_our_model(
    emu3: tuple[Any, RasterModel], monkeypatch: pytest.MonkeyPatch, name: str, budget: str, sampled: bool,
) -> None:
    theirs, ours = emu3
    with cm.attach(theirs, name, budget, grid=tiny.GRID) as cache:
        tokens = emu3_tokens(theirs, 2, **drawn(monkeypatch, 2, sampled), past_key_values=cache)
    assert torch.equal(tokens, expected(ours, name, budget, 2, float(sampled)))


def test_a_full_cache_generates_the_tokens_of_transformers(janus: tuple[Any, RasterModel], emu3: tuple[Any, RasterModel]) -> None:
    for (theirs, _), generate, grid in ((janus, janus_tokens, None), (emu3, emu3_tokens, tiny.GRID)):
        dynamic = generate(theirs, 2, do_sample=False, **{tiny.CACHE: transformers.DynamicCache()})
        for name, same in (("full", True), ("window", False)):
            with cm.attach(theirs, name, grid=grid) as cache:
                assert torch.equal(generate(theirs, 2, do_sample=False, **{tiny.CACHE: cache}), dynamic) is same, name


def test_emu3_without_guidance_runs_one_pass_per_token(emu3: tuple[Any, RasterModel]) -> None:
    theirs, ours = emu3
    with cm.attach(theirs, "h2o", "1/4", grid=tiny.GRID) as cache:
        tokens = emu3_tokens(theirs, 3, 1.0, do_sample=False, past_key_values=cache)
    assert torch.equal(tokens, expected(ours, "h2o", "1/4", 3, 0.0, 1.0))


def test_a_method_of_a_plug_in_is_attached(janus: tuple[Any, RasterModel]) -> None:
    theirs, ours = janus

    @cm.method("key_sum")
    class KeySum(cm.Scored):
        def score(self, step: Any, slots: Any) -> Tensor:
            return slots.keys().sum(-1)

    with cm.attach(theirs, "key_sum", "1/4") as cache:
        tokens = janus_tokens(theirs, 2, do_sample=False, past_key_values=cache)
    assert torch.equal(tokens, expected(ours, "key_sum", "1/4", 2, 0.0))


def test_tokens_that_close_an_image_attend_to_each_heads_own_cache(emu3: tuple[Any, RasterModel]) -> None:
    """A full cache in two parts, one for each head, gives the hidden states of transformers' cache."""
    theirs, _ = emu3

    @cm.method("in_two_parts")
    class InTwoParts(HeadGroups):
        def served(self, layout: Any, site: Any) -> Any:
            return [cm.Method(), METHODS.get("window")(B=layout.visual)][:: 1 if site.layer else -1]

    states: list[Tensor] = []
    hook = theirs.model.text_model.register_forward_hook(lambda module, args, out: states.append(out.last_hidden_state[:, -1]))
    with cm.attach(theirs, "in_two_parts", 1, grid=tiny.GRID) as cache:
        emu3_tokens(theirs, 2, 1.0, do_sample=False, past_key_values=cache)
    emu3_tokens(theirs, 2, 1.0, do_sample=False, **{tiny.CACHE: transformers.DynamicCache()})
    hook.remove()
    attached, dynamic = torch.stack(states).chunk(2)
    assert len(attached) == tiny.GRID[0] * (tiny.GRID[1] + 1) + 3
    torch.testing.assert_close(attached, dynamic, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@pytest.mark.parametrize("family", ["janus", "emu3"])
def test_generate_takes_the_cache_under_its_old_and_its_new_name(family: str, name: str, request: pytest.FixtureRequest) -> None:
    """transformers calls the argument ``cache`` since 5.24."""
    theirs, _ = request.getfixturevalue(family)
    generate, grid = (janus_tokens, None) if family == "janus" else (emu3_tokens, tiny.GRID)
    with cm.attach(theirs, "streaming", grid=grid) as cache:
        tokens = generate(theirs, 1, do_sample=False, **{name: cache})
        assert cache.kv_bytes
        assert torch.equal(generate(theirs, 1, do_sample=False, past_key_values=cache), tokens)
    assert "generate" not in vars(theirs)


# -- bytes, and several generations -----------------------------------------------------------------------------------------


def test_bytes_of_both_guidance_rows_count(emu3: tuple[Any, RasterModel]) -> None:
    theirs, _ = emu3
    (height, width), pair = tiny.GRID, 2 * tiny.LAYERS * 2 * HEAD_DIM * FP32
    visual = height * (width + 1) - 1
    with cm.attach(theirs, grid=tiny.GRID) as cache:
        emu3_tokens(theirs, 1, do_sample=False, past_key_values=cache)
        assert cache.kv_bytes == (len(tiny.PROMPTS[0]) + len(tiny.NEGATIVE) + 2 * visual) * pair
        emu3_tokens(theirs, 1, 1.0, do_sample=False, past_key_values=cache)
        assert cache.kv_bytes == (len(tiny.PROMPTS[0]) + visual) * pair


def test_generations_of_any_batch_follow_each_other(janus: tuple[Any, RasterModel], emu3: tuple[Any, RasterModel]) -> None:
    for (theirs, ours), generate, grid in ((janus, janus_tokens, None), (emu3, emu3_tokens, tiny.GRID)):
        with cm.attach(theirs, "linear", "1/4", grid=grid) as cache:
            memories = []
            for rows in (3, 1, 1):
                tokens = generate(theirs, rows, do_sample=False, past_key_values=cache)
                assert torch.equal(tokens, expected(ours, "linear", "1/4", rows, 0.0)), rows
                memories.append(cache._decoding.memory)
            assert memories[1] is memories[2], "a generation of the same shape reuses storage"


def test_generations_inside_and_outside_of_inference_mode_share_a_cache(janus: tuple[Any, RasterModel]) -> None:
    theirs, _ = janus
    with cm.attach(theirs, "h2o", "1/4") as cache:
        with torch.inference_mode():
            first = janus_tokens(theirs, 2, do_sample=False, past_key_values=cache)
        assert torch.equal(janus_tokens(theirs, 2, do_sample=False, past_key_values=cache), first)
