"""``cachemark calibrate``: values from a small profile."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from cachemark.cache.layout import scale_steps
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base import calibrations
from cachemark.methods.base.calibrations import measured
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.trial.child import profiles
from support.stages import call


@functools.cache
def similarity(samples: int) -> tuple[str, tuple[tuple[float, ...], ...]]:
    """Weights of tiny-var and S of its layers over so many of the seeds of the packaged calibration."""
    facts = profiles.calibrated(AMSKV, "tiny-var", Request(), subset="s64", samples=samples, batch=16)
    return facts["weights"], tuple(map(tuple, facts["similarity"]))


def test_a_calibration_has_every_layer_and_scale() -> None:
    entry = MODELS.get("tiny-var")
    layout = entry.shape(entry.presets["paper"], 1)
    _, layers = similarity(4)
    assert [len(layer) for layer in layers] == [len(scale_steps(layout)) - 1] * layout.layers
    assert all(s <= 0 for layer in layers for s in layer)


@pytest.mark.parametrize(("samples", "near"), [(4, 0.35), pytest.param(64, 0.05, marks=pytest.mark.slow)])
def test_the_packaged_similarity_can_be_measured_again(samples: int, near: float) -> None:
    """Another machine rounds otherwise, and a token or two of 64 images may then differ."""
    weights, layers = similarity(samples)
    packaged = measured("ams_kv", weights)["similarity"]
    assert len(packaged) == len(layers)
    for ours, stored in zip(layers, packaged, strict=True):
        assert list(ours) == pytest.approx(list(stored), rel=near)


def test_a_raster_model_has_no_scales_to_calibrate() -> None:
    result = call("calibrate", "ams_kv", "tiny-llamagen")
    assert result.exit_code == 2
    assert "next-scale" in result.output


def test_calibrating_writes_what_a_run_in_that_folder_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = json.loads(call("calibrate", "heatkv", "tiny-var", "--samples", "2", "--json").stdout)
    assert (told["seeds"], told["samples"], told["scales"]) == ("tune64", 2, [1, 2, 3, 4, 6, 8, 12, 16])
    facts = measured("heatkv", told["weights"])
    assert calibrations.fingerprint(facts) == told["calibration"]
    assert facts["scas"] == told["scas"]
    packaged = calibrations.packaged("heatkv")[told["weights"].partition("/")[0]]
    far = [abs(a - b) for mine, its in zip(facts["scas"], packaged["scas"], strict=True) for x, y in zip(mine, its, strict=True)
           for a, b in zip(x, y, strict=True)]  # fmt: skip
    assert 0 < max(far) < 0.1, "of two samples instead of ten"
    text = call("calibrate", "heatkv", "tiny-var", "--samples", "2").stdout
    assert f"calibration {told['calibration']}" in text
    assert "2 samples of tune64" in text
