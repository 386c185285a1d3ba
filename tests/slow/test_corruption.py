"""Spoilt images are found out: by paired values at 64 seeds, and by FID at 2000 images."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wilcoxon

from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import difference
from cachemark.metrics.similarity import psnr, ssim
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS
from cachemark.models.weights import packaged
from tools.train.feature_network import real_scenes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
IMAGES, PAIRS, SURE = 2000, 64, 0.01
Scenes = tuple[torch.Tensor, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    """Decoded real scenes; spoilt: lines 5 and 11 of every tenth change places, or each is half a mean over 3 by 3 pixels."""
    coder = VQ_WEIGHTS.load(packaged("tiny-vq.safetensors"))
    real = real_scenes(IMAGES, purpose="spoilt").float() / 127.5 - 1
    with torch.inference_mode():
        tokens = torch.cat([coder.encode(part).flatten(1) for part in real.split(100)])
        swapped = tokens.clone().unflatten(1, (16, 16))
        swapped[::10, [5, 11]] = swapped[::10, [11, 5]]
        clean, torn = (torch.cat([coder.decode(part).clamp(-1, 1) for part in made.split(100)]) for made in (tokens, swapped.flatten(1)))
    return clean, {"swapped": torn, "blurred": (clean + F.avg_pool2d(F.pad(clean, (1, 1, 1, 1), mode="replicate"), 3, 1)) / 2}


@pytest.mark.parametrize("fault", ["swapped", "blurred"])
def test_spoilt_images_are_found_by_pairs_at_64_seeds_and_by_fid_at_2000(fault: str, scenes: Scenes) -> None:
    clean, spoilt = scenes[0], scenes[1][fault]
    for figure in (psnr, ssim):
        worse, better = (figure(images[:PAIRS], clean[:PAIRS]).double().numpy() for images in (spoilt, clean))
        assert wilcoxon(worse, better, alternative="less").pvalue < SURE  # exact; pairs that are equal say nothing
    eyes = preset("scene")
    before, after = (ImageFeatures.of(images, eyes.extractor) for images in (clean, spoilt))
    change = difference(after, before, eyes.reference)
    assert change.low > 0, change
