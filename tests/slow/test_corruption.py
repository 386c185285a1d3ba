"""Spoilt images are found out: by paired values at 64 seeds, and by FID at 2000 images."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wilcoxon
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core.seeds import subset
from cachemark.methods.full import Full
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import QualityInterval, difference, intervals
from cachemark.metrics.similarity import psnr, ssim
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS
from cachemark.models.weights import packaged
from tools.train.feature_network import real_floor, real_scenes

pytestmark = pytest.mark.slow
IMAGES, PAIRS, SURE = 2000, 64, 0.01
Spoil = Callable[[Tensor, "Coder"], Tensor]


class Coder:
    """Tokens (B, 256) of real scenes, and the images of tokens: what a perfect generator with this tokenizer makes."""

    def __init__(self) -> None:
        self._model = VQ_WEIGHTS.load(packaged("tiny-vq.safetensors"))
        scenes = real_scenes(IMAGES, purpose="spoilt").float() / 127.5 - 1
        with torch.inference_mode():
            self.tokens = torch.cat([self._model.encode(part).flatten(1) for part in scenes.split(100)])

    def images(self, tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([self._model.decode(part).clamp(-1, 1) for part in tokens.split(100)])


def swapped(clean: Tensor, coder: Coder) -> Tensor:
    """Lines 5 and 11 of the tokens change places in every tenth image."""
    tokens = coder.tokens[: len(clean)].clone().unflatten(1, (16, 16))
    tokens[::10, [5, 11]] = tokens[::10, [11, 5]]
    return coder.images(tokens.flatten(1))


def blurred(clean: Tensor, coder: Coder) -> Tensor:
    """A mean over 3 by 3 pixels, mixed half with the image."""
    padded = F.pad(clean, (1, 1, 1, 1), mode="replicate")
    return (clean + F.avg_pool2d(padded, 3, 1)) / 2


SPOILS: dict[str, Spoil] = {"two lines of tokens swapped in 10 %": swapped, "blur": blurred}


@pytest.fixture(scope="module")
def coder() -> Coder:
    return Coder()


@pytest.fixture(scope="module")
def clean(coder: Coder) -> Tensor:
    return coder.images(coder.tokens)


def p_value(worse: Tensor, better: Tensor) -> float:
    """One-sided exact signed-rank test of pairs; pairs that are equal say nothing."""
    return float(wilcoxon(worse.double().numpy(), better.double().numpy(), alternative="less").pvalue)


@pytest.mark.parametrize("name", SPOILS)
def test_paired_figures_find_it_at_64_seeds(name: str, clean: Tensor, coder: Coder) -> None:
    own = clean[:PAIRS]
    spoilt = SPOILS[name](own, coder)
    same = psnr(own, own), ssim(own, own)
    assert p_value(psnr(spoilt, own), same[0]) < SURE
    assert p_value(ssim(spoilt, own), same[1]) < SURE


@pytest.mark.parametrize("name", SPOILS)
def test_fid_finds_it_at_2000_images(name: str, clean: Tensor, coder: Coder) -> None:
    eyes = preset("scene")
    before, after = (ImageFeatures.of(images, eyes.extractor) for images in (clean, SPOILS[name](clean, coder)))
    change = difference(after, before, eyes.reference)
    assert change.low > 0, change


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT, SETS = 2000, 24


def test_the_intervals_are_as_wide_as_sets_of_real_scenes_scatter() -> None:
    scene = preset("scene")
    results: list[dict[str, QualityInterval]] = []
    for i in range(SETS):
        results.append(intervals(scene.extract(real_scenes(COUNT, i, "width")), scene.reference, **{**scene.options, "kid_subsets": 20}))
    for name in results[0]:
        values = torch.tensor([first[name].value for first in results], dtype=torch.float64)
        width = sum(first[name].high - first[name].low for first in results) / SETS / (2 * 1.96)
        print(f"{name}: {values.mean():.4g}, scatters by {values.std():.3g}, its interval says {width:.3g}")
        inside = sum(first[name].low <= values.mean() <= first[name].high for first in results)
        assert inside >= SETS - 4, name
        assert 0.65 < width / values.std() < 2, name  # the scatter of 24 sets is itself known to 15 %
    floor = real_floor(scene.extract(real_scenes(COUNT, 0, "width")), scene.reference, COUNT)
    assert floor.value == results[0]["fid"].value


@pytest.mark.parametrize("model", ["tiny-llamagen", "tiny-var", "tiny-mar"])
def test_the_full_cache_shows_the_class_that_is_asked_for(model: str) -> None:
    """And its color key; both for a thousand images under the preset ``paper``."""
    entry, scene = MODELS.get(model), preset("scene")
    loaded, chosen = entry.load(Request()), subset("s2k", entry.classes).first(1000)
    right, obeyed = [], []
    for part in chosen.slices(50):
        tokens = loaded.generator.generate(torch.tensor(part.labels), part.seeds, Full(), entry.presets["paper"], Memory())
        with torch.inference_mode():
            images = loaded.decode(tokens).float()
        right.append(scene.extract(images).logits.argmax(1) == torch.tensor(part.labels))
        obeyed.append(matching_colors(images).float().mean(1))
    displayed, consistency = torch.cat(right).double().mean(), torch.cat(obeyed).double().mean()
    print(f"{model}: class {displayed:.3f}, color consistency {consistency:.3f}")
    assert displayed >= 0.8
    assert consistency >= 0.95
