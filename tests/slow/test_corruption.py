"""Spoilt images are found out: by paired values at 64 seeds, and by FID at 2000 images."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wilcoxon
from torch import Tensor

from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import difference
from cachemark.metrics.similarity import psnr, ssim
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS
from cachemark.models.weights import packaged
from tools.train.feature_network import real_scenes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
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
