"""Bad input of ``attach`` is named in one line, and the model is afterwards as it was before."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import cachemark as cm
from cachemark.adapters import families
from cachemark.core.errors import BadBudget, BadParameter, CachemarkError, UnknownName, Unsupported
from support.later import later

transformers, tiny = later("transformers"), later("adapters.tiny")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {"janus": tiny.their_janus(), "emu3": tiny.their_emu3()}


@pytest.fixture(autouse=True)
def unchanged(models: dict[str, Any]) -> Iterator[None]:
    before = list(map(_state, models.values()))
    yield
    assert list(map(_state, models.values())) == before


def _state(model: Any) -> list[Any]:
    """Everything of a model and its configs but the values of its parameters."""
    modules = [(path, type(module), sorted(vars(module)), len(module._forward_pre_hooks), len(module._forward_hooks),
                len(module._forward_pre_hooks_with_kwargs)) for path, module in model.named_modules()]
    configs = [config._attn_implementation for config in (model.config, model.config.get_text_config(), model.config.vq_config)]
    return [modules, configs, model.config.to_dict(), model.generation_config.to_dict()]


def generated(model: Any, cache: Any, rows: int = 1, **settings: Any) -> Tensor:
    return model.generate(**{**tiny.padded(tiny.PROMPTS[:rows]), "generation_mode": "image", "guidance_scale": 3.0, "do_sample": False,
                             tiny.CACHE: cache, **settings})


def emu3_generated(model: Any, cache: Any, **settings: Any) -> Tensor:
    return model.generate(**{**tiny.padded(tiny.PROMPTS[:1]), **tiny.emu3_settings(1, 1.0), "do_sample": False, tiny.CACHE: cache,
                             **settings})


@pytest.mark.parametrize(("name", "arguments", "error", "text"), [
    ("janus", {"method": "windw"}, UnknownName, "Unknown method 'windw'. Did you mean 'window'?"),
    ("janus", {"method": "ams_kv"}, Unsupported, "ams_kv is a method for next-scale models, and this model predicts the next"),
    ("janus", {"method": "lazymar"}, Unsupported, "lazymar is a method for masked models"),
    ("janus", {"method": "full", "budget": "1/2"}, BadBudget, "full: it keeps everything"),
    ("janus", {"method": "window", "budget": "3"}, BadBudget, "Budget '3' is outside (0, 1]."),
    ("janus", {"method": "window", "sinks": 3}, UnknownName, "Unknown argument of attach with window 'sinks'."),
    ("janus", {"method": "linear", "B": 9}, BadBudget, "linear: B = 9, recent_lines = 1, anchor = 8 do not fit lines of 8."),
    ("janus", {"method": "ssd_heads"}, BadParameter, "ssd_heads: no calibration found for these weights."),
    ("janus", {"grid": (4, 4)}, BadParameter, "grid = (4, 4) does not fit this model. Leave it out: images have 8×8 tokens."),
    ("emu3", {}, BadParameter, "Emu3ForConditionalGeneration generates images of any size. Pass the size in tokens: grid = "),
    ("emu3", {"grid": (0, 4)}, BadParameter, "grid = (0, 4) is out of range."),
    ("emu3", {"grid": "8x6"}, BadParameter, "grid = '8x6' is not a size. Use two numbers of tokens, (height, width)."),
])
def test_bad_arguments_change_nothing(models: dict[str, Any], name: str, arguments: dict[str, Any], error: type[CachemarkError],
                                      text: str) -> None:
    with pytest.raises(error) as raised:
        cm.attach(models[name], **arguments)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("installed", "text"), [("5.4.0", r"needs transformers 5.5 or newer \(got 5.4.0\)"), (None, "is not installed")])
def test_a_library_that_is_missing_or_too_old_is_named(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, installed: str | None, text: str,
) -> None:
    monkeypatch.setattr(families, "version", Mock(return_value=installed, side_effect=None if installed else families.PackageNotFoundError))
    with pytest.raises(Unsupported, match=text):
        cm.attach(models["janus"])


# -- inside and behind the block ------------------------------------------------------------------------------------------
def test_an_exception_of_the_block_leaves_the_model_and_later_generations_as_they_were(models: dict[str, Any]) -> None:
    janus = models["janus"]
    with pytest.raises(KeyboardInterrupt), cm.attach(janus, "linear") as cache:
        generated(janus, cache, logits_processor=transformers.LogitsProcessorList([tiny.Interrupt(5)]))
    with cm.attach(janus, "linear") as cache:
        complete = generated(janus, cache)
        with pytest.raises(KeyboardInterrupt):
            generated(janus, cache, logits_processor=transformers.LogitsProcessorList([tiny.Interrupt(5)]))
        assert torch.equal(generated(janus, cache), complete)


def test_a_generation_that_stops_early_is_reset_and_one_that_stops_at_the_image_is_complete(models: dict[str, Any]) -> None:
    emu3 = models["emu3"]
    with cm.attach(emu3, "linear", grid=tiny.GRID) as cache:
        complete = emu3_generated(emu3, cache)
        emu3_generated(emu3, cache, max_new_tokens=4)
        with pytest.raises(Unsupported, match=r"The cache contains an unfinished image \(3 of 60 tokens were fed\). Call reset\(\)"):
            emu3_generated(emu3, cache)
        cache.reset()
        assert torch.equal(emu3_generated(emu3, cache), complete)
        emu3_generated(emu3, cache, max_new_tokens=60)  # all image tokens, without those that close the image
        assert torch.equal(emu3_generated(emu3, cache), complete)


def test_what_cannot_be_attached_or_generated_is_refused(models: dict[str, Any]) -> None:
    """And one generation of the cache itself runs after each."""
    @cm.method("skipping")
    class Skipping(cm.Method):
        def block(self, site: Any, step: Any, tokens: Any, block: Any) -> Any:
            return tokens

    janus, emu3 = models["janus"], models["emu3"]
    right = {name: tensor.flip(1) for name, tensor in tiny.padded(tiny.PROMPTS[:2]).items()}
    other = type(janus)(janus.config).eval()
    other.generation_config = janus.generation_config
    with pytest.raises(Unsupported, match="skipping overrides block"):
        cm.attach(janus, "skipping", 1)
    with pytest.raises(Unsupported, match="Supported: JanusForConditionalGeneration, Emu3"):
        cm.attach(nn.Linear(2, 2))
    with cm.attach(janus, "window") as cache:
        for refused, words in (
            (lambda: generated(janus, transformers.DynamicCache()), "Pass it: generate"),
            (lambda: cm.attach(janus, "h2o").__enter__(), "already attached"),
            (lambda: generated(janus, cache, generation_mode="text", max_new_tokens=3), "generation_mode"),
            (lambda: generated(janus, cache, 2, **right), "Pad on the left"),
            (lambda: generated(other, transformers.DynamicCache()), "deepcopy"),
        ):
            with pytest.raises(Unsupported, match=words):
                refused()
        generated(janus, cache)
    with pytest.raises(Unsupported, match="outside of its block"):
        generated(janus, cache)
    for settings, words in (({"num_beams": 2}, "beam search"), ({"prefill_chunk_size": 2}, "feed each prompt in one pass")):
        with cm.attach(emu3, "window", grid=tiny.GRID) as cache, pytest.raises(Unsupported, match=words):
            emu3_generated(emu3, cache, **settings)
    with cm.attach(emu3, "window", grid=tiny.GRID), pytest.raises(Unsupported, match="Pass it: generate"):
        emu3_generated(emu3, None)
    with cm.attach(emu3, "window", grid=(4, 4)) as cache, pytest.raises(Unsupported, match="more than the 20 tokens of an image"):
        emu3_generated(emu3, cache)
    with cm.attach(emu3, "window", grid=tiny.GRID) as cache, pytest.raises(Unsupported, match=r"mask of shape \(1, 1, 2, 2\)"):
        emu3(torch.tensor([[1, 5]]), attention_mask=torch.ones(1, 1, 2, 2), **{tiny.CACHE: cache})
