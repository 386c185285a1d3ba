"""Models of transformers with an attached cache generate the tokens of our models with the same method, weights and random numbers."""

from typing import Any, NamedTuple

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


class Family(NamedTuple):
    """Their model and ours with the same weights, and what a user says of the size of an image."""

    theirs: Any
    ours: RasterModel
    grid: tuple[int, int] | None

    def generate(self, rows: int, guidance: float = GUIDANCE, **settings: Any) -> Tensor:
        """Return the image tokens of the first prompts."""
        inputs = tiny.padded(tiny.PROMPTS[:rows])
        if self.grid is None:
            return self.theirs.generate(**inputs, generation_mode="image", guidance_scale=guidance, **settings)
        tokens = self.theirs.generate(**inputs, **tiny.emu3_settings(rows, guidance), **settings)[:, inputs["input_ids"].size(1) :]
        assert tokens[:, -3:].tolist() == [[tiny.FRAME_END, tiny.IMAGE_END, tiny.END]] * rows
        return tokens[:, :-3]

    def greedy(self, rows: int, cache: Any, guidance: float = GUIDANCE) -> Tensor:
        return self.generate(rows, guidance, do_sample=False, **{tiny.CACHE: cache})

    def expected(self, name: str, budget: str, rows: int, temperature: float = 0.0, guidance: float = GUIDANCE) -> Tensor:
        """Return the tokens of our model."""
        sampling, samples = Sampling(cfg_scale=guidance, temperature=temperature), list(range(rows))
        cls = METHODS.get(name)
        method = cls.build(cls.parameters_for(Budget.parse(budget).ratio, self.ours.layout(samples, sampling, samples)))
        return self.ours.generate(torch.tensor(samples), samples, method, sampling, Memory())


@pytest.fixture(scope="module")
def families() -> dict[str, Family]:
    janus, emu3 = tiny.their_janus(), tiny.their_emu3()
    return {"janus": Family(janus, tiny.our_janus(janus), None), "emu3": Family(emu3, tiny.our_emu3(emu3), tiny.GRID)}


@pytest.mark.parametrize(("family", "name", "budget", "sampled"), [
    *(("janus", *case) for case in IN_TURN), *(("emu3", name, budget, not sampled) for name, budget, sampled in IN_TURN[::2])])
def test_a_model_generates_the_tokens_of_ours(
    families: dict[str, Family], monkeypatch: pytest.MonkeyPatch, family: str, name: str, budget: str, sampled: bool,
) -> None:
    """Sampled tokens are drawn with the random numbers of our models."""
    model = families[family]
    if sampled:
        monkeypatch.setattr(torch, "multinomial", tiny.keyed_multinomial(range(2)))
    with cm.attach(model.theirs, name, budget, grid=model.grid) as cache:
        tokens = model.generate(2, do_sample=sampled, past_key_values=cache, **({"top_k": 0} if sampled else {}))
    assert torch.equal(tokens, model.expected(name, budget, 2, float(sampled)))


def test_a_full_cache_generates_the_tokens_of_transformers_under_its_old_and_its_new_name(families: dict[str, Family]) -> None:
    """transformers calls the argument ``cache`` since 5.24."""
    for model in families.values():
        dynamic = model.greedy(2, transformers.DynamicCache())
        for name, same in (("full", True), ("window", False)):
            with cm.attach(model.theirs, name, grid=model.grid) as cache:
                assert torch.equal(model.greedy(2, cache), dynamic) is same, name
        with cm.attach(model.theirs, "streaming", grid=model.grid) as cache:
            old, new = (model.generate(1, do_sample=False, **{name: cache}) for name in ("past_key_values", "cache"))
            assert cache.kv_bytes
            assert torch.equal(old, new)
        assert "generate" not in vars(model.theirs)


def test_emu3_without_guidance_runs_one_pass_per_token_and_a_method_of_a_plug_in_is_attached(families: dict[str, Family]) -> None:
    @cm.method("key_sum")
    class KeySum(cm.Scored):
        def score(self, step: Any, slots: Any) -> Tensor:
            return slots.keys().sum(-1)

    for family, name, guidance in (("emu3", "h2o", 1.0), ("janus", "key_sum", GUIDANCE)):
        model = families[family]
        with cm.attach(model.theirs, name, "1/4", grid=model.grid) as cache:
            assert torch.equal(model.greedy(3, cache, guidance), model.expected(name, "1/4", 3, guidance=guidance))


def test_tokens_that_close_an_image_attend_to_each_heads_own_cache(families: dict[str, Family]) -> None:
    """A full cache in two parts, one for each head, gives the hidden states of transformers' cache."""
    emu3 = families["emu3"]

    @cm.method("in_two_parts")
    class InTwoParts(HeadGroups):
        def served(self, layout: Any, site: Any) -> Any:
            return [cm.Method(), METHODS.get("window")(B=layout.visual)][:: 1 if site.layer else -1]

    states: list[Tensor] = []
    hook = emu3.theirs.model.text_model.register_forward_hook(lambda module, args, out: states.append(out.last_hidden_state[:, -1]))
    with cm.attach(emu3.theirs, "in_two_parts", 1, grid=emu3.grid) as cache:
        emu3.greedy(2, cache, 1.0)
    emu3.greedy(2, transformers.DynamicCache(), 1.0)
    hook.remove()
    attached, dynamic = torch.stack(states).chunk(2)
    assert len(attached) == tiny.GRID[0] * (tiny.GRID[1] + 1) + 3
    torch.testing.assert_close(attached, dynamic, atol=1e-4, rtol=1e-4)


def test_bytes_of_both_guidance_rows_count_and_generations_of_any_batch_follow_each_other(families: dict[str, Family]) -> None:
    """Inside and outside of inference mode; one of the same shape reuses storage."""
    emu3, (height, width), pair = families["emu3"], tiny.GRID, 2 * tiny.LAYERS * 2 * HEAD_DIM * FP32
    visual = height * (width + 1) - 1
    with cm.attach(emu3.theirs, grid=emu3.grid) as cache:
        emu3.greedy(1, cache)
        assert cache.kv_bytes == (len(tiny.PROMPTS[0]) + len(tiny.NEGATIVE) + 2 * visual) * pair
        emu3.greedy(1, cache, 1.0)
        assert cache.kv_bytes == (len(tiny.PROMPTS[0]) + visual) * pair
    janus, memories = families["janus"], []
    with cm.attach(janus.theirs, "linear", "1/4") as cache:
        for rows, mode in ((3, False), (1, True), (1, False)):
            with torch.inference_mode(mode):
                tokens = janus.greedy(rows, cache)
            assert torch.equal(tokens, janus.expected("linear", "1/4", rows)), rows
            memories.append(cache._decoding.memory)
        assert memories[1] is memories[2]
