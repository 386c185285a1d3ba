"""``python -m studies.papers``: published sizes and speedups beside arithmetic and measurements."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.tracked.benchmarks import METHODS, Generations
from cachemark.cli import main
from cachemark.core.errors import CachemarkError
from cachemark.machine.affinity import torch_threads
from cachemark.models.registry import MODELS
from cachemark.workflows.roofline import device_rates, roofline_times
from studies.papers import size_claims as module
from studies.papers.__main__ import papers
from studies.papers.published_sizes import PAPER_UNIT, UNITS, PublishedSize, published
from studies.papers.size_claims import size_claims
from support.repositories import git

SIZES = {"infinity-2b": (32, 2048), "infinity-8b": (40, 3584)}  # layers and width
ALL, READ = 10521, 6425  # tokens of an image, and those before the last scale
FOLLOWING = [  # paper, table, model, images, printed, tokens that are kept
    *(("ScaleKV", "Table 1", model, 8, printed, tokens) for model, sizes in (("infinity-2b", ("38550", "7800", "3900", "1590")),
                                                                            ("infinity-8b", ("84328", "17062", "8531", "3478")))
      for printed, tokens in zip(sizes, (READ, 1300, 650, 265), strict=True)),
    ("ScaleKV", "Table 3", "infinity-8b", 1, "10.5", READ), ("ScaleKV", "Table 3", "infinity-8b", 1, "1.1", 650),
    ("ScaleKV", "Table 3", "infinity-8b", 8, "8.5", 650), ("ScaleKV", "Table 3", "infinity-8b", 16, "17.1", 650),
    ("HeatKV", "Figure 1", "infinity-8b", 4, "42", READ), ("HACK++", "main text", "infinity-8b", 1, "16.86", ALL),
    ("HACK++", "main text", "infinity-8b", 1, "1.69", ALL // 10), ("HACK++", "main text", "infinity-8b", 1, "0.17", ALL // 100),
]  # fmt: skip


def call(*arguments: str) -> Any:
    result = CliRunner().invoke(papers, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def speeds(*arguments: str) -> dict[str, dict[str, Any]]:
    return {row["row"]: row for row in call("speeds", *arguments)["published"]}


@pytest.mark.parametrize("model", SIZES)
def test_published_sizes_follow_from_tokens_layers_width_two_rows_and_six_bytes(model: str) -> None:
    claims = {(claim.paper, claim.table, claim.printed): claim for claim in size_claims(MODELS.get(model), torch.float16)}
    layers, width = SIZES[model]
    rows = [row for row in FOLLOWING if row[2] == model]
    for paper, table, _, images, printed, tokens in rows:
        claim, size = claims.pop((paper, table, printed)), tokens * layers * width * 2 * 6 * images
        by = "" if claim.batch else f" by {images} image{'s' if images > 1 else ''}"
        assert claim.finding.startswith(
            f"reproduced{by}: {size:,} bytes, {size / UNITS[claim.means]:.3f} in {claim.means}, with K in fp32, V in 16 bit")
        assert (", all scales kept" in claim.finding) == (tokens == ALL)
        assert claim.allocated.images == images
    assert {printed for paper, _, printed in claims if paper != "AMS-KV"} <= {"85", "170", "2.1"}, "each other one is in the table"


@pytest.mark.parametrize("model", [*SIZES, "var-d30", "var-d36-512"])
def test_a_size_changed_by_one_in_its_last_digit_does_not_follow(model: str) -> None:
    """Changed away from what it rounds or cuts off."""
    entry = MODELS.get(model)
    image, rows = entry.shape(entry.presets["paper"], 1), published(model)
    follow = [(row, claim.finding) for row, claim in zip(rows, size_claims(entry, torch.float16), strict=True)
              if claim.finding.startswith("reproduced")]
    assert follow
    for row, finding in follow:
        exact, digits = float(re.findall(r"([\d.]+) in ", finding)[0]), len(row.printed.partition(".")[2])
        step = 10**-digits if float(row.printed) > exact else -(10**-digits)
        other = replace(row, printed=f"{float(row.printed) + step:.{digits}f}")
        accountings = module._accountings(other, [other if each == row else each for each in rows], image)
        assert module._claim(other, accountings, image, torch.float16, entry).finding.startswith("not reproduced"), other.printed


def test_agreement_is_rounding_or_cutting_off_and_nothing_wider() -> None:
    claim = PublishedSize("", "", "", 1, "full", "53.15", "GB", "1000 MiB")
    assert [claim.agrees(int(size * PAPER_UNIT)) for size in (53.1449, 53.1451, 53.1500001, 53.1599, 53.1601)] == [
        False, True, True, True, False]


def test_sizes_of_every_method_stand_beside_the_published_ones() -> None:
    data = call("sizes", "var-d30", "--batch", "50")
    rows = {row["method"]: row for row in data["methods"]}
    assert (rows["full, last scale kept"]["bytes"], rows["full"]["share"]) == (15_667_200_000, pytest.approx(424 / 680))
    assert rows["ams_kv, 5 demanding layers"]["share_of_full"] == pytest.approx((5 * 424 + 25 * 174) / (30 * 424))
    assert {row["finding"].partition(" ")[0] for row in data["published"] if row["method"] == "ams_kv"} == {"not"}
    with pytest.raises(CachemarkError, match="next-scale"):
        call("sizes", "llamagen-b")


def test_a_published_speedup_stands_beside_what_its_gpu_and_the_asked_one_allow() -> None:
    row = speeds("llamagen-xl", "--gpu", "h200", "--method", "linear", "--budget", "1/4", "--batch", "256")["LlamaGen-XL, LineAR 1/4"]
    assert (row["batch_stated"], row["gpu"], row["measured"]) == (True, "A800 80 GB", None)
    assert row["speedup"] == pytest.approx(5.18, abs=0.005)
    for place, gpu in (("here", "h200"), ("there", "a800")):
        least = roofline_times("llamagen-xl", device_rates(gpu, "bfloat16"), methods=["linear"], budgets=["1/4"], batches=[256])[1]
        bounds = row[f"roofline_{place}"], row[f"speedup_bound_{place}"]
        assert bounds == pytest.approx((least.seconds / 256, least.speedup), rel=1e-3)
    assert {claim["method"] for claim in speeds("infinity-8b").values()} == {"scalekv", "heatkv", "hack", "hackpp"}
    claims = speeds("mar-h", "--method", "lazymar")
    assert claims["LazyMAR-H, 64"]["speedup_bound_here"] > claims["LazyMAR-H, 64, as described"]["speedup_bound_here"]


# -- the benchmarks of this repository run as CONTRIBUTING.md describes: one by asv, and all by --
ROOT = Path(__file__).parents[2]
PIECE = "lazymar selection"


def test_asv_measures_a_piece(tmp_path: Path) -> None:
    config = json.loads((ROOT / "asv.conf.json").read_text())
    repository = tmp_path / "repository"  # its one commit stands for the measured code: the suite may have been unpacked without git
    git(tmp_path, "init", "-q", "-b", "main", str(repository))
    git(repository, "commit", "-q", "--allow-empty", "-m", "measured")
    commit = git(repository, "rev-parse", "HEAD")
    folders = {"repo": str(repository), "benchmark_dir": str(ROOT / config["benchmark_dir"]), "branches": ["main"],
               "results_dir": str(tmp_path / "results")}
    (tmp_path / "asv.conf.json").write_text(json.dumps(config | folders))
    environment = os.environ | {"HOME": str(tmp_path)}
    for arguments in (["machine", "--yes"], ["run", "--quick", "--bench", PIECE, "--set-commit-hash", commit]):
        command = [sys.executable, "-m", "asv", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=240)
    [results] = (tmp_path / "results").glob(f"*/{commit[:8]}-*.json")
    stored = json.loads(results.read_text())
    [row] = stored["results"].values()
    values = dict(zip(row[1][0], row[0], strict=True))
    assert values[repr(PIECE)] > 0


@pytest.mark.parametrize("model", METHODS)
def test_every_generation_is_tracked(model: str) -> None:
    generations, nbytes = Generations(), list[int]()
    with torch_threads(1):
        for method in Generations.params[1]:
            generations.setup(model, method)
            nbytes.append(generations.track_kv_bytes(model, method))
    full, tracked = nbytes
    assert full == 0 < tracked if model == "tiny-mar" else 0 < tracked <= full


def test_the_micro_benchmarks_are_stored_judged_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    micro, store = tmp_path / "micro.json", f"sqlite:///{tmp_path / 'results.sqlite'}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "benchmarks", "-k", "selection",
               "--benchmark-json", micro, "--benchmark-max-time", "0.05", "--benchmark-min-rounds", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # a worker of xdist times nothing
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=environment)
    for arguments in (["ingest", "pytest-benchmark", str(micro)], ["baseline", "save"], ["check"], ["export", "csv", "metrics.csv"]):
        result = CliRunner().invoke(main, [*arguments, "--store", store])
        assert result.exit_code == 0, result.output
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert any("test_selection" in row and "latency" in row for row in rows)
