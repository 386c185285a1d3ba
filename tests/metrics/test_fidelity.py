"""Fidelity against definitions written out slowly, and the colors of scenes: each wrong one costs the region that has it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.caption_scores import CaptionScore
from cachemark.metrics.color_consistency import REGIONS, ColorConsistency, matching_colors
from cachemark.metrics.registry import image_metrics
from cachemark.metrics.similarity import psnr, ssim
from cachemark.metrics.tokens import TokenAgreement, kl_divergence
from cachemark.models.tiny.captions import AXES, Asked, parsed
from tools.train.caption_scene import caption_scenes
from tools.train.scene import scenes


def images(seed: int, *shape: int) -> torch.Tensor:
    """Smooth random images in about [-1, 1]: noise, blurred once along each axis."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (noise + noise.roll(1, -1) + noise.roll(1, -2)) / 2


def naive_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Compute SSIM (Wang et al. 2004) in float64 by loops over windows and channels."""
    window = np.array([[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)] for i in range(11)])
    window /= window.sum()
    scores = []
    for a, b in zip(x, y, strict=True):
        for top in range(a.shape[0] - 10):
            for column in range(a.shape[1] - 10):
                p, q = a[top : top + 11, column : column + 11], b[top : top + 11, column : column + 11]
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
                product = (window * (p - mp) * (q - mq)).sum()
                c1, c2 = (0.01 * 1.0) ** 2, (0.03 * 1.0) ** 2
                scores.append((2 * mp * mq + c1) * (2 * product + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(scores))


def unit(image: torch.Tensor) -> np.ndarray:
    return (image.double().clamp(-1, 1).numpy() + 1) / 2


@pytest.mark.parametrize("size", [(11, 11), (13, 17)])
@pytest.mark.parametrize("noise", [0.0, 0.02, 1.0])
def test_ssim_is_the_published_formula(size: tuple[int, int], noise: float) -> None:
    """And NaN is not hidden."""
    x = images(0, 2, 3, *size)
    y = x * 0.9 + noise * images(1, 2, 3, *size)
    expected = [naive_ssim(unit(a), unit(b)) for a, b in zip(x, y, strict=True)]
    assert ssim(x, y).tolist() == pytest.approx(expected, abs=2e-5)
    y[:, 0, 0, 0] = torch.nan
    assert ssim(y, x).isnan().all()
    assert psnr(y, x).isnan().all()


def test_psnr_counts_the_range_from_black_to_white_as_one() -> None:
    """A tenth and a hundredth of it, equal images, whose figure is capped, two that are white, and black beside white."""
    for image, reference, expected in ((0.2, 0.0, 20), (0.02, 0.0, 40), (1e-6, 0.0, 60), (7.0, 1.0, 60), (-1.0, 1.0, 0)):
        assert psnr(torch.full((1, 3, 8, 8), image), torch.full((1, 3, 8, 8), reference)).item() == pytest.approx(expected, abs=1e-3)


def test_agreement_is_a_share_of_positions_and_divergence_is_in_nats() -> None:
    reference = torch.arange(8).view(2, 4)
    tokens = reference.clone()
    tokens[1, 2:] += 1
    batch = ImageBatch(tokens, reference, tokens, reference, [0, 1], [0, 1])
    assert TokenAgreement().measure(batch).tolist() == [1.0, 0.5]
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    assert kl_divergence(p.log(), q.log()).item() == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1), abs=1e-6)
    assert kl_divergence(q.log(), p.log()).item() == pytest.approx(0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5), abs=1e-6)
    assert kl_divergence(p.log(), p.log()).item() == 0


OBJECT, GROUND, LEFT, RIGHT = range(4)


def turned(image: torch.Tensor) -> torch.Tensor:
    return image.roll(1, -3)


def corrupt(images: torch.Tensor, rows: slice, columns: slice = slice(0, 64)) -> torch.Tensor:
    out = images.clone()
    out[:, :, rows, columns] = turned(images[:, :, rows, columns])
    return out


@pytest.mark.parametrize(("region", "wrong"), [
    ((slice(44, 60),), {GROUND}), ((slice(4, 44),), {OBJECT}), ((slice(60, 64), slice(0, 32)), {LEFT}),
    ((slice(60, 64), slice(32, 64)), {RIGHT}), ((slice(0, 4), slice(0, 32)), {OBJECT, RIGHT}),
    ((slice(0, 4), slice(32, 64)), {GROUND, LEFT}),
], ids=["ground", "object", "footer left", "footer right", "swatch of the object", "swatch of the ground"])  # fmt: skip
def test_a_wrong_color_costs_its_own_region_only(region: tuple[slice, ...], wrong: set[int]) -> None:
    shares = matching_colors(corrupt(scenes(100, 34).images, *region)).float().mean(0)
    for question, share in enumerate(shares.tolist()):
        assert share <= 0.02 if question in wrong else share >= 0.98, REGIONS[question]


def test_the_value_is_the_fraction_of_matching_regions_whatever_the_hues() -> None:
    images = scenes(50, 35).images
    for shown, value in ((images, 1.0), (turned(images), 1.0), (corrupt(images, slice(44, 60)), 0.75)):
        assert ColorConsistency().measure(ImageBatch(shown, shown, shown, shown, [0] * 50, [0] * 50)).tolist() == [value] * 50


CAPTIONS = (
    "two red stars above blue stripes", "a green disc left of yellow dots", "three cyan crosses below magenta checks",
    "a yellow square right of red bars", "two magenta rings above green dots", "three blue triangles below cyan stripes",
)
LABELS = [*range(6)] * 8
METRICS = {name: cls for name, cls in image_metrics().items() if issubclass(cls, CaptionScore)}


def figures(asked: list[Asked], captions: tuple[str, ...] = CAPTIONS) -> dict[str, float]:
    """Return the mean of each metric over images of these scenes, which were asked for by the captions in turn."""
    images = caption_scenes(asked, 77).images
    context, batch = MetricContext(prompts=captions), ImageBatch(images, images, images, images, LABELS, LABELS)
    return {name: float(cls().prepared(context).measure(batch).mean()) for name, cls in METRICS.items()}


@pytest.mark.parametrize("axis", AXES)
def test_a_fault_on_one_axis_shows_there_and_nowhere_else(axis: str) -> None:
    requests = [parsed(CAPTIONS[label]) for label in LABELS]
    means = figures([replace(request, **{axis: (getattr(request, axis) + 1) % len(AXES[axis])}) for request in requests])
    affected = {name for name, cls in METRICS.items() if axis in cls.axes}
    assert {name for name, value in means.items() if value <= 0.05} == affected
    assert min(value for name, value in means.items() if name not in affected) >= 0.95


def test_pictures_of_captions_are_right_and_what_a_caption_leaves_out_may_look_as_it_likes() -> None:
    bare = tuple(replace(parsed(caption), colour=None, ground_colour=None).caption for caption in CAPTIONS)
    for captions in (CAPTIONS, bare):
        assert min(figures([parsed(captions[label]) for label in LABELS], captions).values()) >= 0.95
