"""SkipVAR: each image's part of a generation, the decision, what it is fitted to, and its budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, squares
from cachemark.contract.deciding import Pictured
from cachemark.contract.method import Method
from cachemark.core import seeds
from cachemark.core.errors import BadBudget, BadCalibration, BadParameter, CachemarkError, Unsupported
from cachemark.core.spec import Budget
from cachemark.kit.saving import SAMPLING, model
from cachemark.methods.base import calibrations
from cachemark.methods.base.outcome_profile import LAST, NEVER, THRESHOLDS, OutcomeProfile, fitted
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.methods.skipvar import OUTCOMES, ImageOutcome, SkipVAR
from cachemark.metrics.similarity import ssim
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from cachemark.roofline.scale_flops import image_flops, share
from cachemark.trial.child.profiles import calibrated

MODEL_NAMES = tuple(SAMPLING)
NAMED = (5, 11, 23)
DECIDED = (ImageOutcome(skipped=2), ImageOutcome(), ImageOutcome(unguided=2))
PLAIN: tuple[Method, ...] = (FewerScales(2), Method(), GuidanceOff(3))


class Given(SkipVAR):
    """SkipVAR that decides as it is told."""

    given: Sequence[Method] = DECIDED

    def resolve(self, layout: Layout) -> None:
        self.threshold = 0.84

    def decide(self, pictured: Pictured) -> Sequence[Method]:
        return self.given


def generate(name: str, method: Method, images: Sequence[int] = (0, 1, 2), forced: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return the tokens of some of the three images, and the guided logits of each scale."""
    logits = list[Tensor]()
    tokens = model(name).generate(torch.tensor(images), [NAMED[image] for image in images], method, SAMPLING[name], Memory(), forced=forced,
                                  see=lambda first, scale: logits.append(scale.clone()))
    return tokens, logits


# -- what an image computes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_each_image_is_that_of_its_outcome_alone(name: str) -> None:
    """The oracle of an outcome is the plain method that computes the same, in a batch of one."""
    tokens, logits = generate(name, Given())
    for image, plain in enumerate(PLAIN):
        expected, by_scale = generate(name, plain, (image,))
        assert torch.equal(tokens[image], expected[0])
        for ours, theirs in zip(logits, by_scale, strict=False):
            assert torch.allclose(ours[image], theirs[0], atol=1e-4)
        assert all(not ours[image].any() for ours in logits[len(by_scale) :])
    assert not torch.equal(tokens[2], generate(name, Method())[0][2])


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_fullest_pass_has_the_entries_of_all_images(name: str) -> None:
    method = Given()
    generate(name, method)
    layout = model(name).layout(NAMED, SAMPLING[name])
    tokens, entry = layout.scale_tokens, 2 * layout.layers * layout.heads * layout.head_dim * 4
    in_pass = [sum(tokens[:scales]) * rows for scales, rows in ((3, 6), (4, 3))]  # two images go on, one of them without guidance
    assert method.logical_bytes == max(in_pass) * entry


def test_no_image_may_compute_the_last_scale() -> None:
    skipping = Given()
    skipping.given = [ImageOutcome(skipped=LAST)] * 3
    tokens, logits = generate("var", skipping)
    assert torch.equal(tokens, generate("var", FewerScales(LAST))[0])
    assert len(logits) == 5 - LAST


def test_the_flops_are_those_of_the_outcomes() -> None:
    layout = model("infinity").layout(NAMED, SAMPLING["infinity"])
    assert [image_flops(outcome, layout) for outcome in DECIDED] == [image_flops(plain, layout) for plain in PLAIN]


def test_a_model_without_a_decoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model("var"), "picture", None)
    with pytest.raises(Unsupported, match=r"has no image decoder of its own, so no method can read its images\. Set picture"):
        generate("var", SkipVAR(calibration=remembered(table(0, 0))))


# -- the decision -----------------------------------------------------------------------------------------------------
def table(skip: int, unguided: int, sides: Sequence[int] = (1, 2, 3, 4, 6)) -> dict[str, Any]:
    """Return facts whose classifiers always choose these classes."""
    def always(chosen: int) -> list[list[list[float]]]:
        return [[[0.0, 0.0, float(number == chosen)] for number in range(LAST + 1)]] * len(THRESHOLDS)

    made = skip or (LAST + unguided if unguided else 0)
    frequencies = [[float(number == made) for number in range(len(OUTCOMES))]] * len(THRESHOLDS)
    return {"model": "made up", "weights": "none", "layers": 2, "heads": 2, "scales": list(sides), "skip": always(skip),
            "unguided": always(unguided), "outcomes": frequencies}


def remembered(facts: dict[str, Any]) -> str:
    return calibrations.remember("skipvar", {**calibrations.shape_of(model("var").layout(NAMED, SAMPLING["var"])), **{
        name: value for name, value in facts.items() if name not in ("layers", "heads", "scales")}})


@pytest.mark.parametrize(("skip", "unguided", "expected"), [
    (0, 0, Method()), (2, 0, FewerScales(2)), (2, 3, FewerScales(2)), (0, 1, GuidanceOff(4)), (0, 3, GuidanceOff(2)),
])
def test_skips_come_before_scales_without_guidance(skip: int, unguided: int, expected: Method) -> None:
    method = SkipVAR(calibration=remembered(table(skip, unguided)))
    assert torch.equal(generate("var", method)[0], generate("var", expected)[0])
    assert share(method, model("var").layout(NAMED, SAMPLING["var"])) == share(expected, model("var").layout(NAMED, SAMPLING["var"]))


@torch.no_grad()
def test_an_image_is_read_before_and_after_the_scale() -> None:
    read = list[tuple[Tensor, Tensor]]()

    class Reading(SkipVAR):
        def decide(self, pictured: Pictured) -> Sequence[Method]:
            read.append(pictured(3))
            return super().decide(pictured)

    var = model("var")
    tokens = generate("var", Reading(calibration=remembered(table(1, 0))))[0]
    parts, maps = var.quantizer.split(tokens), [var.quantizer.empty(3)]
    for scale in (0, 1):
        maps.append(var.quantizer.add(maps[-1], parts[scale], scale))
    for image, f_hat in zip(read[0], maps[1:], strict=True):  # 5 scales, of which the last three are decided about
        assert torch.equal(image, F.interpolate(f_hat, size=(3, 3), mode="bilinear")[:, :3].tanh())


# -- the fit ----------------------------------------------------------------------------------------------------------
def test_a_fit_is_the_optimum_of_its_loss() -> None:
    draw = torch.Generator().manual_seed(5)
    features = torch.rand(40, 2, generator=draw).double() * torch.tensor((0.1, 3.0))
    labels = (features[:, 0] * 30 + torch.rand(40, generator=draw)).long().clamp_max(3)
    labels[labels == 2] = 0
    classifiers = fitted(features, labels)
    assert classifiers[2].tolist() == [0.0, 0.0, NEVER]
    mean, scale = features.mean(0), features.std(0, correction=0)
    present = [0, 1, 3]
    weights = classifiers[present, :2] * scale
    own = torch.cat((weights, (classifiers[present, 2] + classifiers[present, :2] @ mean)[:, None]), 1).requires_grad_()
    x = torch.cat(((features - mean) / scale, torch.ones(40, 1)), 1)
    classes = torch.tensor([present.index(label) for label in labels.tolist()])
    loss = F.cross_entropy(x @ own.T, classes, reduction="sum") + own[:, :2].square().sum() / 2
    gradient, = torch.autograd.grad(loss, own)
    assert gradient.abs().max() < 1e-6


def test_one_class_alone_is_always_chosen() -> None:
    classifiers = fitted(torch.rand(5, 2).double(), torch.full((5,), 2))
    assert classifiers[:, 2].tolist() == [NEVER, NEVER, 0.0, NEVER]


def test_a_label_is_the_cheapest_outcome_that_is_similar_enough() -> None:
    profile = OutcomeProfile(8, OUTCOMES)
    profile.layout = model("var").layout(NAMED, SAMPLING["var"])
    profile.features = [torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]] * 8).double()]
    similar = torch.tensor([[0.87, 0.85, 0.3, 0.99, 0.9, 0.86], [0.5, 0.4, 0.3, 0.99, 0.9, 0.5], [0.5, 0.4, 0.3, 0.7, 0.6, 0.5]] * 8)
    profile.note(similar.unbind(1))
    facts = profile.facts
    by_threshold = dict(zip(facts["thresholds"], facts["outcomes"], strict=True))
    third = pytest.approx(1 / 3, abs=1e-6)
    assert by_threshold[0.84] == [third, 0.0, third, 0.0, 0.0, third, 0.0]
    assert by_threshold[0.86] == [third, third, 0.0, 0.0, 0.0, third, 0.0]


def test_calibrating_generates_every_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = list[Tensor]()
    note = OutcomeProfile.note
    monkeypatch.setattr(OutcomeProfile, "note", lambda self, values: (noted.extend(values), note(self, values))[1])
    facts = calibrated(SkipVAR, "tiny-var", Request(), subset="tune64", samples=2)
    loaded, chosen = MODELS.get("tiny-var").load(Request()), seeds.subset("tune64", 10).first(2)

    def image(method: Method) -> Tensor:
        preset = MODELS.get("tiny-var").presets["paper"]
        with torch.inference_mode():
            return loaded.decode(loaded.generator.generate(torch.tensor(chosen.labels), chosen.seeds, method, preset, Memory()))

    expected = [ssim(image(method), image(Method())) for method in (FewerScales(2), GuidanceOff(7))]
    assert torch.allclose(noted[1], expected[0], atol=1e-5)
    assert torch.allclose(noted[3], expected[1], atol=1e-5)
    json.dumps(facts)
    assert facts["samples"] == 2


# -- calibrations and budgets -----------------------------------------------------------------------------------------
def test_the_bundled_model_has_a_table() -> None:
    entry = MODELS.get("tiny-var")
    layout, weights = entry.shape(entry.presets["paper"], 4), entry.identity(Request())
    loose, tight = (resolve(SkipVAR, Budget(Fraction(budget)), layout, {}, weights) for budget in ("1/2", "9/10"))
    assert loose["threshold"] < tight["threshold"] < 1
    assert share(SkipVAR.build(loose), layout) <= Fraction(1, 2) < share(SkipVAR.build(tight), layout) <= Fraction(9, 10)
    assert resolve(SkipVAR, Budget(Fraction(1)), layout, {}, weights)["threshold"] == 1
    with pytest.raises(BadBudget, match=r"skipvar: at its thresholds it computes at least 0\.4.* of the FLOPs of an image, more than"):
        resolve(SkipVAR, Budget(Fraction(1, 10)), layout, {}, weights)


@pytest.mark.parametrize(("parameters", "error", "words"), [
    ({}, BadParameter, r"skipvar: no calibration found for these weights\. Run `cachemark calibrate skipvar MODEL`"),
    ({"calibration": "tiny-var"}, BadCalibration,
     r"skipvar: the calibration tiny-var is of another model or resolution: layers 6, not 16; .*Measure this model: cachemark cal"),
    ({"calibration": "nobody"}, CachemarkError, "Unknown calibration of skipvar 'nobody'"),
    ({"threshold": 0.85}, BadParameter, r"skipvar: threshold = 0\.85 is out of range\. Use one of 0\.5, .*0\.95, 1 for no decision"),
])  # fmt: skip
def test_a_calibration_of_another_model_is_refused(parameters: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    entry = MODELS.get("tiny-var" if "threshold" in parameters else "var-d16")
    layout = entry.shape(entry.presets["paper"], 1)
    with pytest.raises(error, match=words) as raised:
        SkipVAR.build(parameters | ({"calibration": "tiny-var"} if "threshold" in parameters else {})).resolve(layout)
    assert "\n" not in str(raised.value)


def test_a_model_of_few_scales_is_refused() -> None:
    layout = replace(model("var").layout(NAMED, SAMPLING["var"]), scales=squares((1, 2, 3, 4)))
    with pytest.raises(BadParameter, match=r"skipvar: 4 scales are too few to decide about the last 3\. Use a model of at least 5"):
        SkipVAR().resolve(layout)
