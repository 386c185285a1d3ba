"""Batches of samples whose prompts differ in length, as a trial cuts them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core import seeds
from cachemark.core.seeds import Subset
from cachemark.core.spec import Sampling
from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.caption_scores import CaptionScore, PromptScore
from cachemark.metrics.registry import image_metrics
from cachemark.models.catalogue.text_to_image import TINY_TEXTS as TEXTS
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import Loaded
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.child.bench import Bench, Job
from support.examples import short_plan
from support.measuring import run_case

PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 3)), ((1, 2, 3), (1, 2, 2, 2, 3)))
FIGURES = {name for name, cls in image_metrics().items() if issubclass(cls, CaptionScore)}
SUBSET = Subset("six", list(range(6)), [0, 1, 1, 1, 1, 0])


def job(memory: Memory | None = None) -> Job:
    model = Janus(JanusConfig(LlamaConfig(1, 4, 64, 96, 128), codes=32, grid=3), PROMPTS).initialise(0).eval().requires_grad_(False)
    model.decoder.embed_tokens.weight.mul_(50)
    loaded = Loaded(model, lambda tokens: tokens, "random:0/random:0", prompted=True)
    return Job(loaded, Method, memory or Memory(), Sampling(cfg_scale=3.0), SUBSET, 2, "cpu")


def test_batches_with_prompts_of_other_lengths_give_the_same_samples() -> None:
    """The second batch has other lengths than the first, the third its lengths again, the rows the other way round."""
    cut = job()
    parts = list(cut.chunks())
    together = replace(cut, batch=6, memory=Memory()).generate(slice(6))
    assert torch.equal(torch.cat([cut.generate(part) for part in parts]), together)
    assert [cut._layout(part).condition for part in parts] == [(3, 5, 3, 5), (5, 5, 5, 5), (5, 3, 5, 3)]
    assert len(together.unique(dim=0)) > 3


def test_a_model_without_prompts_is_not_asked_about_labels() -> None:
    """As models of plug-ins are written: two parameters."""

    class OfClasses:
        def layout(self, seeds: Sequence[int], sampling: Sampling) -> Layout:
            return Layout("next-token", (1,) * len(seeds), 3, 3, 4, 4, 16, 1)

    loaded: Any = Loaded(OfClasses(), lambda tokens: tokens, "random:0")  # type: ignore[arg-type]
    assert replace(job(), loaded=loaded).layout.condition == (1,) * 6


@pytest.mark.slow
def test_a_trial_scores_images_by_their_prompts_and_says_what_these_were(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(short_plan('model = "tiny-t2i"\nmethods = ["window"]\nbudgets = ["1/4"]'))
    cases = {planned.case.label: Prepared.of(planned) for planned in expand(plans.load(str(tmp_path / "plan.toml")))}
    candidate = cases["window 1/4"]
    bench = Bench.load(candidate)
    outcome, files = run_case(candidate, bench)
    assert outcome.ok
    assert {name: len(values) for name, values in outcome.samples.items() if name in FIGURES} == dict.fromkeys(FIGURES, 2)
    assert outcome.facts.grid_prompts == [TEXTS[label] for label in outcome.facts.grid_classes]
    assert "grid.png" in files
    tokens = load(files["tokens.safetensors"])["tokens"]
    images, labels = bench.loaded.decode(tokens), seeds.subset("s64", len(TEXTS)).labels[:2]
    again = PromptScore().prepared(MetricContext(prompts=TEXTS)).measure(ImageBatch(images, images, tokens, tokens, labels, labels))
    assert outcome.samples["prompt_score"] == again.tolist()
