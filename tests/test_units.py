"""Names of metrics: the fixed ones, and those of whole sets of images, which say what they were compared with and how many there were."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachemark.analysis.explanations import glossary
from cachemark.core.errors import UnknownName
from cachemark.core.units import FAMILIES, METRICS, SEEN, image_count, is_metric, least_images, metric, quality_name
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.similarity import PSNR_CAP
from cachemark.workflows.list import listing

GUIDE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"


@pytest.mark.parametrize(("base", "preset", "count", "name"), [
    ("fid", "scene", 2000, "fid_scene_2k"), ("fid", "adm", 50_000, "fid_adm_50k"), ("kid", "scene", 512, "kid_scene_512"),
    ("recall", "x9", 1, "recall_x9_1"), ("isc", "scene", 2500, "isc_scene_2500"), ("precision", "adm", 1_000_000, "precision_adm_1000k"),
])  # fmt: skip
def test_a_set_of_images_has_a_name(base: str, preset: str, count: int, name: str) -> None:
    assert quality_name(base, preset, count) == name
    resolved = metric(name)
    assert (resolved.name, resolved.kind, resolved.version) == (name, "quality", 1)
    assert is_metric(name)
    assert not resolved.deterministic
    assert FAMILIES[base].title in resolved.title


@pytest.mark.parametrize("name", [
    "fid", "fid_scene", "fid_2k", "fid_scene_", "fid_scene_0", "fid_scene_02k", "fid_scene_2000", "fid_scene_2K", "fid_Scene_2k",
    "fid_sc-ene_2k", "fid_vgg_16_2k", "mind_scene_2k", "fid_scene_2k ", "fid_scene_2k\n", "fid_scene_٢k", "kid_std_scene_2k", "",
])  # fmt: skip
def test_other_spellings_are_no_names(name: str) -> None:
    assert not is_metric(name)
    with pytest.raises(UnknownName, match=re.escape(repr(name))):
        metric(name)


def test_the_least_images_follow_from_what_the_network_of_the_preset_sees() -> None:
    real = preset("scene").reference
    assert SEEN["scene"] == (real.features.shape[1], real.logits.shape[1])
    assert [least_images(name) for name in ("fid_scene_128", "fid_adm_50k", "isc_scene_2k", "isc_adm_50k")] == [384, 6144, 400, 40_320]
    assert {least_images(name) for name in ("kid_scene_128", "precision_scene_2k", "fid_mine_8", "psnr", "nonsense")} == {0}
    assert [image_count(name) for name in ("fid_scene_2k", "kid_x_17", "psnr", "fid_scene_2000")] == [2000, 17, 0, 0]


def test_the_range_of_an_image_s_figure_is_that_of_its_unit() -> None:
    """From it follows how the interval of a mean is found, so a new metric has to have one."""
    shares = {name for name, m in METRICS.items() if m.unit == "share" and m.kind in ("fidelity", "quality")}
    assert shares == {name for name, m in METRICS.items() if m.within == (0, 1)}
    assert {name for name, m in METRICS.items() if m.within == (0, float("inf"))} == {"kl", "token_distance", "forced_distance", "lpips"}
    assert METRICS["psnr"].within == (0, PSNR_CAP)
    assert METRICS["ssim"].within == (-1, 1)
    assert METRICS["ssim"].apart == (-2, 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_defined_with_its_unit_and_direction(name: str) -> None:
    described = GUIDE.read_text(encoding="utf-8").split(f"### `{name}_…`\n")[1].strip()
    assert described.startswith(f"*{FAMILIES[name].unit or 'no unit'}, {FAMILIES[name].better} is better.*")


def test_every_metric_that_a_report_may_show_is_listed_and_explained() -> None:
    listed = {row["name"]: row["summary"] for row in listing("metrics")}
    assert list(listed) == [*METRICS, *(f"{name}_<preset>_<images>" for name in FAMILIES)]
    for result in (*METRICS.values(), *FAMILIES.values()):
        assert glossary()[result.title] == result.meaning
        assert any(summary.startswith(result.title) and summary.endswith(result.meaning) for summary in listed.values())
