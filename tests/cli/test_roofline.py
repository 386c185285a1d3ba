"""``cachemark roofline``: least times by method, budget and batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.limits import GPUS
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.machine import rates as measured
from cachemark.store.db import Store
from report import report_sample as sample
from support.stages import call


def table(*arguments: str) -> list[dict[str, Any]]:
    result = call("roofline", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["least_times"]
    return found


def test_a_raster_model_under_its_family_s_method() -> None:
    rows = table("llamagen-b", "--batch", "1", "--batch", "64")
    assert [(r["method"], r["budget"], r["batch"]) for r in rows] == [
        (m, b, n) for n in (1, 64) for m, b in (("full", "1"), ("linear", "1/4"), ("linear", "1/6"), ("linear", "1/8"))]
    gains = {(r["batch"], r["budget"]): r["speed_up"] for r in rows}
    assert gains[1, "1"] == gains[64, "1"] == 1
    assert 1 < gains[1, "1/8"] < gains[64, "1/8"]
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])


def test_another_gpu_has_another_least_time() -> None:
    slow, fast = (table("llamagen-b", "--gpu", name, "--method", "window", "--budget", "1/2")[0]["seconds"] for name in ("3090", "h100"))
    assert 1 < slow / fast <= GPUS["h100"].matmul / GPUS["3090"].matmul


def test_what_a_method_cannot_is_said_in_its_line() -> None:
    result = call("roofline", "mar-b", "--method", "linear", "--method", "fewer_steps", "--budget", "3/4", "--steps", "16")
    assert result.exit_code == 0, result.output
    assert "linear does not run on masked models" in result.stdout
    assert any(line.startswith("fewer_steps 3/4") and "×" in line for line in result.stdout.splitlines())


def test_a_method_without_sizes_of_its_own_says_so_and_the_full_cache_stands_once() -> None:
    own = call("roofline", "llamagen-b", "--budget", "own").stdout
    assert "linear has no sizes of its own. Give a share of the full cache, such as 1/4." in own
    rows = table("llamagen-b", "--method", "full", "--method", "linear", "--budget", "1/2")
    assert [(row["method"], row["budget"]) for row in rows] == [("full", "1"), ("linear", "1/2")]


def test_scales_have_their_demanding_layers_and_activations_apart_cost_more() -> None:
    few, many = (table("var-d16", "--demanding", count)[1]["nbytes"]["read"] for count in ("0", "16"))
    assert few < many
    plain, apart = (table("var-d16", *more)[0]["seconds"] for more in ([], ["--apart"]))
    assert plain < apart


def test_the_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def rates(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"float32": GPUS["3090"]}

    monkeypatch.setattr(measured, "rates", rates)
    result = call("roofline", "tiny-llamagen", "--here", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "copy 940 GB/s, matmul 71 TFLOP/s" in result.stdout.splitlines()[0]
    assert asked[0][2] == ["float32"]


def test_rates_that_cannot_be_measured_are_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "rates", lambda *arguments: {})
    result = call("roofline", "tiny-llamagen", "--here")
    assert result.exit_code == 5
    assert "cannot be measured" in result.stderr
    assert "cachemark doctor" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (["llamagen-b", "--dtype", "float32"], "16 bit"), (["llamagen-b", "--gpu", "h10"], "h100"), (["llamagn-b"], "llamagen-b"),
    (["llamagen-b", "--gpu", "h100", "--here"], "cannot be combined"), (["llamagen-b", "--method", "liner"], "linear"),
    (["llamagen-b", "--gpu", ""], "h100"),
    (["llamagen-b", "--budget", "onw"], "'onw' is not a number. Did you mean 'own'?"), (["llamagen-xl", "--budget", "0"], "outside (0, 1]"),
    (["llamagen-b", "--steps", "9"], "llamagen-b is a next-token model, whose passes follow from its tokens"),
    (["mar-b", "--steps", "257"], "Give 1 … 256 steps"),
    (["llamagen-b", "--demanding", "2"], "only ams_kv has such layers"),
    (["var-d16", "--method", "h2o", "--budget", "1/2", "--demanding", "2"], "here h2o would run"),
    (["var-d16", "--demanding", "17"], "17 demanding layers, and the model has 16"),
    (["var-d16", "--kv", "--demanding", "17"], "17 demanding layers, and the model has 16"),
    (["llamagen-b", "--decoder", "jacobi=16", "--tokens-per-pass", "40"], "a pass of --decoder jacobi=16 draws 16 tokens"),
    (["var-d16", "--kv", "--method", "h2o", "--steps", "3"], "--method and --steps cannot be combined with --kv"),
    (["var-d16", "--kv", "--batch", "1", "--batch", "2"], "Give --batch once"),
])  # fmt: skip
def test_mistakes_name_the_remedy(arguments: list[str], said: str) -> None:
    result = call("roofline", *arguments)
    assert result.exit_code == 2
    assert said in result.output


# -- several tokens a pass ----------------------------------------------------------------------------------------------
def priced(*arguments: str) -> dict[tuple[str, int], dict[str, Any]]:
    result = call("roofline", "llamagen-xl", "--gpu", "h100", "--decoder", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {(row["method"], row["batch"]): row for row in json.loads(result.stdout)["passes"]}


def test_a_pass_of_one_token_costs_one_pass() -> None:
    assert {row["cost"] for row in priced("jacobi=1", "--method", "linear", "--budget", "1/4").values()} == {1.0}


def test_windows_cost_little_at_a_small_batch_and_much_where_an_evicting_cache_wins() -> None:
    """At batch 1 weights are read whatever is fed; at 256 FLOPs decide, and linear has taken away the reading that a window would share."""
    batches = [option for batch in (1, 16, 256) for option in ("--batch", str(batch))]
    found = priced("jacobi=16", "--tokens-per-pass", "3", "--method", "linear", "--budget", "1/6", *batches)
    cost = {key: row["cost"] for key, row in found.items()}
    assert 1 < cost["full", 1] < 1.1 < cost["full", 16] < 2 < cost["full", 256] < cost["linear", 256] < 16
    gain = {key: row["speed_up"] for key, row in found.items()}
    assert gain["full", 1] == pytest.approx(3 / cost["full", 1])
    assert gain["full", 1] > 2.5 > 1.5 > gain["full", 256] > 1
    alone = {row["batch"]: row["speed_up"] for row in table("llamagen-xl", "--gpu", "h100", "--budget", "1/6", *batches)
             if row["method"] == "linear"}
    assert gain["full", 1] > alone[1]
    assert gain["full", 256] < alone[256], "there forgetting wins"


def test_a_window_that_looks_ahead_computes_more_beside_a_method_that_evicts_by_lines() -> None:
    options = "--batch", "256", "--method", "linear", "--budget", "1/6"
    near, far = (priced(decoder, *options) for decoder in ("jacobi=16", "jacobi=16,look_ahead"))
    assert near["full", 256]["cost"] == far["full", 256]["cost"]
    assert near["linear", 256]["cost"] < far["linear", 256]["cost"] < 16
    assert far["linear", 256]["decoder"] == "jacobi 16 ahead"


def test_what_a_decoder_cannot_is_said() -> None:
    assert "states no horizon" in call("roofline", "llamagen-b", "--method", "h2o", "--budget", "1/2", "--decoder", "jacobi=4").stdout
    for arguments, said in (
        (("var-d16", "--decoder", "jacobi=4"), "next-token models"), (("llamagen-b", "--decoder", "jacoby=4"), "'jacobi'"),
        (("llamagen-b", "--tokens-per-pass", "2"), "needs --decoder"),
        (("llamagen-b", "--decoder", "jacobi=4,far"), "jacobi=16,look_ahead"),
    ):
        assert said in call("roofline", *arguments).output
    assert "–" in call("roofline", "llamagen-b", "--decoder", "jacobi=4").stdout


# -- published speed-ups ------------------------------------------------------------------------------------------------
def claimed(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    result = call("roofline", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {(row["table"], row["row"]): row for row in json.loads(result.stdout)["published"]}


QUARTER = "LineAR, Table 4", "LlamaGen-XL, LineAR 1/4"


def test_a_published_speed_up_stands_beside_what_its_gpu_and_the_asked_one_allow() -> None:
    asked = "llamagen-xl", "--gpu", "h200", "--method", "linear", "--budget", "1/4", "--batch", "256"
    ((name, row),) = claimed(*asked).items()
    assert (name, row["batch_stated"], row["gpu"], row["measured"]) == (QUARTER, True, "A800 80 GB", None)
    assert row["speed_up"] == pytest.approx(5.18, abs=0.005)
    assert "padded buffer" in row["baseline"]
    assert row["allocated"] == row["live"] == 144 / 575
    arm = table(*asked)[1]
    assert (row["least_here"], row["ideal_here"]) == pytest.approx((arm["seconds"] / 256, arm["speed_up"]))
    there = table(*asked[:1], "--gpu", "a800", *asked[3:])[1]
    assert (row["least_there"], row["ideal_there"]) == pytest.approx((there["seconds"] / 256, there["speed_up"]), rel=1e-3)
    lines = call("roofline", *asked).stdout.splitlines()
    assert any(line.startswith(": ".join(QUARTER)) and "5.18×" in line and "1.85×" in line for line in lines)
    assert "  beyond the ideal: 5.18× is more than the 1.85×" in "\n".join(lines)
    assert any("their full cache: the released models: a padded buffer" in line for line in lines)


def test_a_time_that_no_image_can_take_is_said_to_be_one_and_notes_of_the_table_follow_it() -> None:
    lines = call("roofline", "infinity-8b", "--method", "scalekv").stdout.splitlines()
    (row,) = (place for place, line in enumerate(lines) if line.startswith("ScaleKV, Figure 7b: Infinity-8B, 1024"))
    assert "52.00 ms" in lines[row]
    assert "2.387 s" in lines[row]
    assert lines[row + 1].startswith("  below the least time: 52.0 ms are below the 2.39 s that an image takes at least on that GPU")
    assert not any("the full cache beside it is slow" in line for line in lines)
    (title,) = (place for place, line in enumerate(lines) if line.startswith("ScaleKV, Figure 7b: on NVIDIA H20"))
    assert any("71 ms is not the time of an image" in line for line in lines[title + 1 : title + 6])


@pytest.mark.parametrize("content", [b"", b"no database" * 99])
def test_a_store_that_cannot_be_read_withholds_no_arithmetic_unless_it_was_asked_for(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cachemark.sqlite").write_bytes(content)
    without = call("roofline", "tiny-llamagen")
    assert (without.exit_code, without.stderr) == (0, "")
    claims = call("roofline", "llamagen-xl")
    assert claims.exit_code == 0
    assert claims.stderr.startswith("Nothing measured is shown: cachemark.sqlite ")
    assert len(claims.stderr.splitlines()) == 1
    assert "5.18×" in claims.stdout
    asked = call("roofline", "llamagen-xl", "--store", "cachemark.sqlite")
    assert asked.exit_code == 2
    assert "bad-store" in asked.stderr


def test_claims_are_of_the_methods_budgets_and_batches_that_are_named() -> None:
    every = claimed("infinity-8b")
    assert {row["method"] for row in every.values()} == {"scalekv", "heatkv", "hack", "hackpp"}
    tenths = claimed("infinity-8b", "--method", "scalekv", "--budget", "0.1", "--batch", "4")
    (name,) = tenths
    assert name == ("ScaleKV, Figure 7b", "Infinity-8B, 1024 pixels, ScaleKV 10 %"), "whose batch is not stated"
    assert tenths[name]["live"] == pytest.approx(0.101, abs=5e-4), "a tenth lives, as its authors count"
    assert tenths[name]["allocated"] == pytest.approx(0.163, abs=5e-4)
    assert claimed("llamagen-xl", "--batch", "64") == {}


def test_a_row_with_knobs_of_its_own_is_that_of_its_plan() -> None:
    found = claimed("mar-h", "--method", "gtr", "--method", "lazymar")
    assert found["GtR, MAR-H", "GtR-H, 32"]["speed_up"] == pytest.approx(0.81 / 0.22)
    assert found["LazyMAR, Table 1", "LazyMAR-H, 64"]["ideal_here"] > found["LazyMAR, Table 1", "LazyMAR-H, 64, as described"]["ideal_here"]
    assert found["LazyMAR, Table 1", "LazyMAR-H, 64"]["allocated"] is None


def test_what_a_store_has_measured_stands_beside_and_runs_are_not_mixed(tmp_path: Path) -> None:
    xl = {"model": "llamagen-xl", "grid": (24, 24), "batch": 256, "dtype": "bfloat16", "sampling": Sampling(cfg_scale=1.75)}

    def ran(seconds: float, **changes: Any) -> Outcome:
        return Outcome(sample.case(**xl, **changes), Status.OK, {"latency": [seconds] * 3}, "not judged", facts={"kernel": "sdpa"})

    arm = ran(6.4, method="linear", knobs={"B": 144}, budget="1/4")
    alone = replace(arm, samples={"latency": [3.2] * 3})  # in a newer run, whose full cache is missing or of another dtype
    wide = ran(9.0, role="baseline")
    wide = replace(wide, case=replace(wide.case, dtype="float32"))
    with Store.open(tmp_path / "s.sqlite") as store:
        for outcomes in ([ran(12.8, role="baseline"), arm], [ran(64.0, role="baseline")], [alone], [wide, alone]):
            run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
            for outcome in outcomes:
                store.save(run, outcome)
    found = claimed("llamagen-xl", "--store", str(tmp_path / "s.sqlite"))
    row = found[QUARTER]
    assert (row["measured"], row["measured_speed_up"], row["machine"]) == (6.4 / 256, 2.0, sample.ENVIRONMENT.machine_class)
    assert found["LineAR, Table 4", "LlamaGen-XL, LineAR 1/6"]["measured"] is None
    assert "on cpu-example-8" in call("roofline", "llamagen-xl", "--store", str(tmp_path / "s.sqlite")).stdout
