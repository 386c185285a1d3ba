"""``cachemark roofline --kv`` and ``cachemark calibrate``: values from arithmetic, and from a small profile."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from cachemark.cache.layout import scale_steps
from cachemark.core import calibrations
from cachemark.core.calibrations import measured
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.calibrated import Calibrated
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.trial.child import profiles
from support.stages import call


def test_roofline_prints_the_published_baseline_of_d30() -> None:
    result = call("roofline", "var-d30", "--kv", "--batch", "50")
    assert result.exit_code == 0, result.output
    full = next(line for line in result.stdout.splitlines() if line.startswith("full, last scale kept"))
    assert full.split()[-1] == "22.412"
    assert "15,667,200,000" in full, "at equal widths, fp16"
    assert "AMS-KV, Table 3, batch 50, full 22.41 GB: reproduced" in result.stdout
    assert "AMS-KV, Table 3, batch 50, ams_kv 4.77 GB: not reproduced" in result.stdout


@pytest.mark.parametrize(("model", "batch", "printed"), [("var-d30", 50, "22.41"), ("var-d30", 16, "7.17"), ("var-d36-512", 25, "53.15")])
def test_every_method_is_listed_in_both_accountings(model: str, batch: int, printed: str) -> None:
    data = json.loads(call("roofline", model, "--kv", "--batch", str(batch), "--json").stdout)
    names = {row["method"].split(",")[0] for row in data["methods"]}
    known = {name: METHODS.get(name) for name in METHODS if "next-scale" in METHODS.get(name).paradigms}
    assert names == {name for name, cls in known.items() if not issubclass(cls, Calibrated)}, "nobody has calibrated VAR"
    full = data["methods"][0]
    assert full["published_unit"] == pytest.approx(1.5 * full["paper_unit"]), "6 bytes a pair against 4"
    claim = next(c for c in data["published"] if c["printed"] == printed and c["batch"] == batch)
    assert (claim["paper"], claim["unit"], claim["means"]) == ("AMS-KV", "GB", "1000 MiB")
    assert claim["finding"].startswith("reproduced")
    assert all("not reproduced" in c["finding"] for c in data["published"] if c["method"] == "ams_kv")


def test_roofline_says_of_newer_papers_what_follows_and_what_ours_allocates() -> None:
    result = call("roofline", "infinity-2b", "--kv", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("ScaleKV, Table 1, batch 8, scalekv 10 % 3900 MB: reproduced"))
    assert "3900.000 in MiB, with K in fp32, V in 16 bit" in lines[at]
    rows = {row["method"]: row for row in json.loads(call("roofline", "infinity-2b", "--kv", "--batch", "8", "--json").stdout)["methods"]}
    assert lines[at + 1].startswith("  here scalekv, mean = 650 allocates 920.2 entries a layer, "
                                    f"{rows['scalekv']['bytes']:,} bytes for 8 images in bfloat16: ")
    assert any(line.startswith("AMS-KV, text on Infinity, no batch printed, full 28.12 GB: not reproduced") for line in lines)


def test_a_model_of_which_nothing_is_printed_has_no_claims() -> None:
    assert json.loads(call("roofline", "var-d16", "--kv", "--json").stdout)["published"] == []
    assert call("roofline", "var-d16", "--kv").stdout.splitlines()[-1].startswith("Bytes with K and V in float16.")


def test_savings_are_stated_against_both_full_caches() -> None:
    data = json.loads(call("roofline", "var-d30", "--kv", "--json", "--demanding", "5").stdout)
    rows = {row["method"]: row for row in data["methods"]}
    assert rows["full, last scale kept"]["share"] == 1
    assert rows["full"]["share"] == pytest.approx(424 / 680)
    ours = rows["ams_kv, 5 demanding layers"]
    assert ours["share"] == pytest.approx((5 * 424 + 25 * 174) / (30 * 680))
    assert ours["share_of_full"] == pytest.approx((5 * 424 + 25 * 174) / (30 * 424))
    assert all(row["bytes"] <= ours["bytes"] for name, row in rows.items() if "B = " in name)


def test_roofline_of_a_raster_model_says_what_it_is_for() -> None:
    result = call("roofline", "llamagen-b", "--kv")
    assert result.exit_code == 2
    assert "next-scale" in result.output


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
