"""Quality at its real size: values from files, intervals as wide as the scatter of fresh real scenes, and class accuracy of models."""

from __future__ import annotations

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.core.seeds import subset
from cachemark.methods.full import Full
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import QualityInterval, intervals
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from tools.train.feature_network import real_floor, real_scenes

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
