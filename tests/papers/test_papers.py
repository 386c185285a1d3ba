"""``python -m benchmarks.papers``: published sizes and speedups beside arithmetic and measurements."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.papers.__main__ import papers
from cachemark.core.errors import CachemarkError
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.methods.base.calibrations import Calibrated
from cachemark.methods.registry import METHODS
from cachemark.store.db import Store
from cachemark.workflows.roofline import device_rates, roofline_times
from report import report_sample as sample


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(papers, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_sizes_of_every_method_stand_beside_the_published_ones_in_both_accountings() -> None:
    data = json.loads(call("sizes", "var-d30", "--batch", "50", "--json").stdout)
    known_names = {name: METHODS.get(name) for name in METHODS if "next-scale" in METHODS.get(name).paradigms}
    names = {row["method"].split(",")[0] for row in data["methods"]}
    assert names == {name for name, cls in known_names.items() if not issubclass(cls, Calibrated)}, "nobody has calibrated VAR"
    rows = {row["method"]: row for row in data["methods"]}
    full, ours = rows["full, last scale kept"], rows["ams_kv, 5 demanding layers"]
    assert (full["bytes"], full["share"]) == (15_667_200_000, 1)
    assert full["published_unit"] == pytest.approx(1.5 * full["paper_unit"]), "6 bytes a pair against 4"
    assert rows["full"]["share"] == pytest.approx(424 / 680)
    assert ours["share"] == pytest.approx((5 * 424 + 25 * 174) / (30 * 680))
    assert ours["share_of_full"] == pytest.approx((5 * 424 + 25 * 174) / (30 * 424))
    assert all(row["bytes"] <= ours["bytes"] for name, row in rows.items() if "B = " in name)
    claim = next(c for c in data["published"] if c["printed"] == "22.41" and c["batch"] == 50)
    assert (claim["paper"], claim["unit"], claim["means"]) == ("AMS-KV", "GB", "1000 MiB")
    assert claim["finding"].startswith("reproduced")
    assert all("not reproduced" in c["finding"] for c in data["published"] if c["method"] == "ams_kv")
    printed = call("sizes", "var-d30", "--batch", "50").stdout
    assert re.search(r"(?m)^full, last scale kept .*15,667,200,000.* 22\.412$", printed)
    assert "AMS-KV, Table 3, batch 50, full 22.41 GB: reproduced" in printed


def test_a_raster_model_is_refused() -> None:
    with pytest.raises(CachemarkError, match="next-scale"):
        call("sizes", "llamagen-b")


# -- published speedups ------------------------------------------------------------------------------------------------
def claimed(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    result = call("speeds", *arguments, "--json")
    return {(row["table"], row["row"]): row for row in json.loads(result.stdout)["published"]}


QUARTER = "LineAR, Table 4", "LlamaGen-XL, LineAR 1/4"


def test_a_published_speedup_stands_beside_what_its_gpu_and_the_asked_one_allow() -> None:
    selected = "--method", "linear", "--budget", "1/4", "--batch", "256"
    ((name, row),) = claimed("llamagen-xl", "--gpu", "h200", *selected).items()
    assert (name, row["batch_stated"], row["gpu"], row["measured"]) == (QUARTER, True, "A800 80 GB", None)
    assert row["speedup"] == pytest.approx(5.18, abs=0.005)
    assert "padded buffer" in row["baseline"]
    assert row["allocated"] == row["live"] == 144 / 575
    least = {gpu: roofline_times("llamagen-xl", device_rates(gpu, "bfloat16"), methods=["linear"], budgets=["1/4"], batches=[256])[1]
             for gpu in ("h200", "a800")}
    assert (row["roofline_here"], row["speedup_bound_here"]) == pytest.approx((least["h200"].seconds / 256, least["h200"].speedup))
    there = row["roofline_there"], row["speedup_bound_there"]
    assert there == pytest.approx((least["a800"].seconds / 256, least["a800"].speedup), rel=1e-3)
    lines = call("speeds", "llamagen-xl", "--gpu", "h200", *selected).stdout.splitlines()
    assert any(line.startswith(": ".join(QUARTER)) and "5.18×" in line and "1.85×" in line for line in lines)
    assert "  implausible speedup: 5.18× exceeds the 1.85×" in "\n".join(lines)
    assert any("their full cache: the released models: a padded buffer" in line for line in lines)


def test_claims_are_of_the_methods_budgets_and_batches_that_are_named() -> None:
    all_claims = claimed("infinity-8b")
    assert {row["method"] for row in all_claims.values()} == {"scalekv", "heatkv", "hack", "hackpp"}
    tenths = claimed("infinity-8b", "--method", "scalekv", "--budget", "0.1", "--batch", "4")
    (name,) = tenths
    assert name == ("ScaleKV, Figure 7b", "Infinity-8B, 1024 pixels, ScaleKV 10 %"), "whose batch is not stated"
    assert tenths[name]["live"] == pytest.approx(0.101, abs=5e-4), "a tenth lives, as its authors count"
    assert tenths[name]["allocated"] == pytest.approx(0.163, abs=5e-4)
    assert claimed("llamagen-xl", "--batch", "64") == {}


def test_a_row_with_parameters_of_its_own_is_that_of_its_plan() -> None:
    claims = claimed("mar-h", "--method", "lazymar")
    published, described = (claims["LazyMAR, Table 1", row] for row in ("LazyMAR-H, 64", "LazyMAR-H, 64, as described"))
    assert published["speedup_bound_here"] > described["speedup_bound_here"]
    assert published["allocated"] is None


def test_what_a_store_has_measured_stands_beside_and_runs_are_not_mixed(tmp_path: Path) -> None:
    xl = {"model": "llamagen-xl", "grid": (24, 24), "batch": 256, "dtype": "bfloat16", "sampling": Sampling(cfg_scale=1.75)}

    def ran(seconds: float, **changes: Any) -> Outcome:
        return Outcome(sample.case(**xl, **changes), Status.OK, {"latency": [seconds] * 3}, "not judged", facts={"kernel": "sdpa"})

    candidate = ran(6.4, method="linear", parameters={"B": 144}, budget="1/4")
    alone = replace(candidate, samples={"latency": [3.2] * 3})  # in a newer run, whose full cache is missing or of another dtype
    wide = ran(9.0, role="baseline")
    wide = replace(wide, case=replace(wide.case, dtype="float32"))
    with Store.open(tmp_path / "s.sqlite") as store:
        for outcomes in ([ran(12.8, role="baseline"), candidate], [ran(64.0, role="baseline")], [alone], [wide, alone]):
            run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
            for outcome in outcomes:
                store.save(run, outcome)
    claims = claimed("llamagen-xl", "--store", str(tmp_path / "s.sqlite"))
    row = claims[QUARTER]
    assert (row["measured"], row["measured_speedup"], row["machine"]) == (6.4 / 256, 2.0, sample.ENVIRONMENT.machine_class)
    assert claims["LineAR, Table 4", "LlamaGen-XL, LineAR 1/6"]["measured"] is None
    assert "on cpu-example-8" in call("speeds", "llamagen-xl", "--store", str(tmp_path / "s.sqlite")).stdout
