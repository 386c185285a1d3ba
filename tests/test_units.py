"""Names of metrics: the fixed ones, and those of whole sets of images, which say what they were compared with and how many there were."""

import re

import pytest

from cachemark.analysis import device_limits
from cachemark.analysis.explanations import glossary
from cachemark.core.errors import UnknownName
from cachemark.core.limits import Limit, Rates, roofline_speedup
from cachemark.core.units import FAMILIES, METRICS, SEEN, image_count, is_metric, least_images, metric, quality_name
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.similarity import PSNR_CAP
from cachemark.roofline.operations import Bill, Op
from cachemark.workflows.list import listing


def test_a_set_of_images_has_a_name_other_spellings_are_none_and_the_least_images_follow_from_what_the_network_sees() -> None:
    for base, preset_name, count, name in (
        ("fid", "scene", 2000, "fid_scene_2k"), ("fid", "adm", 50_000, "fid_adm_50k"), ("kid", "scene", 512, "kid_scene_512"),
        ("recall", "x9", 1, "recall_x9_1"), ("isc", "scene", 2500, "isc_scene_2500"),
        ("precision", "adm", 1_000_000, "precision_adm_1000k")):
        assert quality_name(base, preset_name, count) == name
        resolved = metric(name)
        assert (resolved.name, resolved.kind, resolved.version, resolved.deterministic) == (name, "quality", 1, False)
        assert is_metric(name)
        assert FAMILIES[base].title in resolved.title
    for name in ("fid", "fid_scene", "fid_2k", "fid_scene_", "fid_scene_0", "fid_scene_02k", "fid_scene_2000", "fid_scene_2K",
                 "fid_Scene_2k", "fid_sc-ene_2k", "fid_vgg_16_2k", "mind_scene_2k", "fid_scene_2k ", "fid_scene_2k\n", "fid_scene_٢k",
                 "kid_std_scene_2k", ""):  # fmt: skip
        assert not is_metric(name)
        with pytest.raises(UnknownName, match=re.escape(repr(name))):
            metric(name)
    real = preset("scene").reference
    assert SEEN["scene"] == (real.features.shape[1], real.logits.shape[1])
    assert [least_images(name) for name in ("fid_scene_128", "fid_adm_50k", "isc_scene_2k", "isc_adm_50k")] == [384, 6144, 400, 40_320]
    assert {least_images(name) for name in ("kid_scene_128", "precision_scene_2k", "fid_mine_8", "psnr", "nonsense")} == {0}
    assert [image_count(name) for name in ("fid_scene_2k", "kid_x_17", "psnr", "fid_scene_2000")] == [2000, 17, 0, 0]


def test_every_metric_is_listed_and_explained_and_the_range_of_an_image_s_figure_is_that_of_its_unit() -> None:
    """From it follows how the interval of a mean is found, so a new metric has to have one."""
    shares = {name for name, m in METRICS.items() if m.unit == "share" and m.kind in ("fidelity", "quality")}
    assert shares == {name for name, m in METRICS.items() if m.within == (0, 1)}
    assert {name for name, m in METRICS.items() if m.within == (0, float("inf"))} == {"kl", "token_distance", "forced_distance", "lpips"}
    assert METRICS["psnr"].within == (0, PSNR_CAP)
    assert (METRICS["ssim"].within, METRICS["ssim"].apart) == ((-1, 1), (-2, 2))
    listed = {row["name"]: row["summary"] for row in listing("metrics")}
    assert list(listed) == [*METRICS, *(f"{name}_<preset>_<images>" for name in FAMILIES)]
    for result in (*METRICS.values(), *FAMILIES.values()):
        assert glossary()[result.title] == result.meaning
        assert any(summary.startswith(result.title) and summary.endswith(result.meaning) for summary in listed.values())


RATES = Rates(bandwidth=100.0, peak_flops=1000.0)
MOVES = Op("attention", flops=10, read=200)  # 2 s of bytes, 0.01 s of arithmetic
COMPUTES = Op("matmul", flops=3000, weights=50, activations=50)  # 3 s of arithmetic, 1 s of bytes


def bill(*ops: Op) -> Bill:
    return Bill.merged(ops, batch=1, passes=1)


def test_an_operation_takes_what_takes_longer_what_was_measured_stands_beside_it_and_more_is_implausible() -> None:
    assert (MOVES.seconds(RATES), COMPUTES.seconds(RATES)) == (2.0, 3.0)
    assert bill(MOVES, COMPUTES, COMPUTES).roofline_time(RATES) == 8.0
    total = bill(MOVES, COMPUTES._replace(times=3), MOVES)
    assert {op.part: op.times for op in total.ops} == {"attention": 2, "matmul": 3}, "alike operations become one, and nothing is lost"
    assert (total.flops, total.moved(), total.moved("read", "weights")) == (9020, 700, 550)
    assert total.only("matmul").flops + total.without("matmul").flops == total.flops
    limit = bill(MOVES, COMPUTES, Op("decode", flops=1000)).limit(RATES)
    assert (limit.roofline_time, limit.tokens, limit.by) == (6.0, 5.0, {"attention": 2.0, "matmul": 3.0, "decode": 1.0})
    assert (limit.over(12.0), limit.mbu(12.0), limit.mfu(12.0)) == (2.0, 3.0 / 12, 4.01 / 12)
    assert Limit.from_json(limit.to_json()) == limit
    full, candidate = (bill(*ops).limit(RATES) for ops in ((MOVES, MOVES, COMPUTES), (MOVES, COMPUTES)))
    assert roofline_speedup(full, candidate) == 7 / 5
    assert "2.17×" in device_limits.implausible(7.57, 2.17)
    assert not device_limits.implausible(2.17 * device_limits.TOLERANCE - 0.01, 2.17)
    assert not device_limits.implausible(7.57, 2.17, tokens=4.0)
    assert not device_limits.implausible(1.0, 0.5)
