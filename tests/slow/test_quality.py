"""Quality at its real size: values of files, intervals as wide as fresh sets of real scenes scatter, and models that show their class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from cachemark.cache.arena import Memory
from cachemark.core.seeds import subset
from cachemark.methods.full import Full
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.image_bytes import as_bytes, resized
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import QualityInterval, intervals
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.schema import prepare
from cachemark.trial.child import quality
from cachemark.trial.child.bench import Bench, case_job
from metrics.toys import in_torch_fidelity
from support.later import later
from tools.train.feature_network import real_floor, real_scenes

torch_fidelity = later("torch_fidelity")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT, SETS = 2000, 24


def folder(images: torch.Tensor, path: Path) -> str:
    path.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:05d}.png")
    return str(path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The 10 000 real scenes behind the reference, as files."""
    return folder(real_scenes(10_000), tmp_path_factory.mktemp("real") / "scenes")


def generated(label: str) -> torch.Tensor:
    """The images (N, H, W, 3) of the quality pass of a case of the plan `quality`."""
    plan, _ = prepare("quality", ())
    planned = next(planned for planned in expand(plan, "cpu") if planned.case.label == label)
    bench = Bench.load(planned)
    job = quality.job_of(case_job(planned.case, bench), planned.case, bench.entry.classes)
    images, side = torch.cat(list(quality._images(job))), planned.case.evaluation["quality"].get("resize")
    return as_bytes(resized(images, side) if side else images).permute(0, 2, 3, 1)


@pytest.mark.parametrize("case", ["full", "streaming 1/2", "window 1/4"])
def test_the_figures_of_two_thousand_generated_images_are_those_of_torch_fidelity_on_files(case: str, real: str, tmp_path: Path) -> None:
    """The images of the plan `quality`, made again and written as PNG."""
    images = generated(case).permute(0, 3, 1, 2)
    assert len(images) == COUNT
    scene = preset("scene")
    ours, files = distribution(scene.extract(images), scene.reference, **scene.options), folder(images, tmp_path / "fake")
    options = {"cuda": False, "verbose": False, "cache": False, "save_cpu_ram": True}
    named = {"input1": files, "feature_extractor": in_torch_fidelity(scene.extractor), **options}
    bare = torch_fidelity.calculate_metrics(input2=real, fid=True, isc=True, **named)
    assert ours["fid"] == pytest.approx(bare["frechet_inception_distance"], rel=1e-3)
    assert ours["isc"] == pytest.approx(bare["inception_score_mean"], rel=1e-3)
    # The reference keeps the features of its first 3000 scenes, in half precision.
    first = tmp_path / "first"
    first.mkdir()
    for path in sorted(Path(real).iterdir())[: len(scene.reference.features)]:
        (first / path.name).hardlink_to(path)
    bare = torch_fidelity.calculate_metrics(input2=str(first), kid=True, prc=True, **scene.options, **named)
    assert ours["kid"] == pytest.approx(bare["kernel_inception_distance_mean"], rel=1e-3)
    for name in ("precision", "recall"):
        assert ours[name] == pytest.approx(bare[name], abs=2e-3)


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
