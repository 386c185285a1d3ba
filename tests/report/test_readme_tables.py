"""The tables of docs/results.md are those of a stored run: the intervals of its raw samples. README's
answers are those that today's rules find in the accepted baseline of the demo."""

from __future__ import annotations

import json
import re
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cachemark.analysis.answers import answer
from cachemark.analysis.case_group import CaseGroup
from cachemark.analysis.quality_claims import Claims, standing
from cachemark.core import formatting as fmt
from cachemark.core.units import METRICS, metric
from cachemark.gate import baselines
from cachemark.stats.intervals import Interval, mean_over_seeds

ROOT = Path(__file__).parents[2]
README, RESULTS = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
REACHED = {"0.73": "0.78", "0.58": "0.61"}  # FLOPs that fewer passes reach, and their budget
ROLES = {"*full, different seeds*": "(other_seeds)", "*full, different batch size*": "(other_batch)"}
Samples = dict[str, list[float]]


class Table(NamedTuple):
    """A table of the results: how its head begins, its model, and where it has which metric, ``less`` the full cache's."""

    head: str
    model: str
    columns: dict[int, str]
    less: dict[int, str] = {}


TABLES = (
    Table("| method | budget | KL, nat/token |", "tiny-llamagen", {2: "kl", 3: "token_agreement", 4: "psnr", 5: "color_consistency"}),
    Table("| method | share of full | KL, nat/token |", "tiny-var", {2: "kl", 3: "token_agreement", 4: "psnr", 5: "color_consistency"}),
    Table("| method | FLOPs | forced distance |", "tiny-mar",
          {2: "forced_distance", 3: "token_distance", 4: "psnr", 5: "color_consistency"}, {6: "color_consistency"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """What was kept of the run of these tables: its commit, and the raw samples of its cases."""
    values: dict[str, Any] = json.loads((ROOT / "reports" / "bundled.json").read_text(encoding="utf-8"))
    return values


@pytest.fixture(scope="module")
def cases(run: dict[str, Any]) -> dict[tuple[str, str, str], Samples]:
    """Raw samples by model, method with its role, and budget as the results round it."""
    return {(case["model"], f"{case['method']} ({case['role']})" if case["role"] else case["method"], rounded(case["budget"])):
            case["samples"] for case in run["cases"]}


def rounded(budget: str) -> str:
    return f"{float(Fraction(budget)):.2f}"


def told(head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``."""
    lines = RESULTS.split(head, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def written(interval: Interval, name: str) -> list[float]:
    """A value and its ends as the results round them, a share as a number."""
    unit = 1 if metric(name).unit == "dB" else 3
    return [round(value, unit) for value in ((interval.value, interval.low, interval.high) if interval.stated else (interval.value,))]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.model)
def test_every_figure_and_every_interval_is_that_of_the_report_s_samples(table: Table, cases: dict[tuple[str, str, str], Samples]) -> None:
    compared = 0
    full = cases[table.model, "full", "1.00"]
    for cells in told(table.head):
        role = ROLES.get(cells[0])
        samples = cases[table.model, f"full {role}" if role else cells[0], rounded(REACHED.get(cells[1], cells[1]))]
        for place, name in (*table.columns.items(), *table.less.items()):
            text = cells[place].replace("−", "-")
            if not text or (cells[0] == "full" and place != 5):
                continue
            less = place in table.less
            values = [a - b for a, b in zip(samples[name], full[name], strict=True)] if less else samples[name]
            expected = written(mean_over_seeds(values, METRICS[name].apart if less else METRICS[name].within), name)
            arguments = [float(number) for number in re.findall(r"-?\d+\.\d+|-?\d+", text)]
            assert len(arguments) in (1, len(expected)), (cells[0], name)
            assert arguments == pytest.approx(expected[: len(arguments)], abs=1e-9), (cells[0], name)
            compared += len(arguments)
    assert compared > 40


def test_speedups_are_those_of_the_medians(cases: dict[tuple[str, str, str], Samples]) -> None:
    """They have no interval there: three repeats say little."""
    compared = 0
    for table in TABLES:
        full = statistics.median(cases[table.model, "full", "1.00"]["latency"])
        for cells in told(table.head):
            if "×" in cells[-1]:
                own = cases[table.model, cells[0], rounded(REACHED.get(cells[1], cells[1]))]["latency"]
                assert cells[-1] == fmt.times(full / statistics.median(own)), cells[:2]
                compared += 1
    assert compared > 12


def test_both_name_one_commit(run: dict[str, Any]) -> None:
    details = re.search(r"`cachemark run demo`, commit ([0-9a-f]{10})", RESULTS)
    assert details is not None
    assert run["commit"].startswith(details[1])


# ------------------------------------------------------------------------------------------------ README

DEMO = ROOT / "baselines" / "accepted" / "amd-epyc-1-threads" / "demo.json"
HEAD = "| model | recommendation | speedup | savings | color consistency |"


def recommended(group: CaseGroup, claims: Claims) -> tuple[str, str, list[str]]:
    """The model, the method of the recommendation and the numbers of one row of README's table."""
    recommendation = answer(group, claims)
    row = recommendation.row or recommendation.lean
    assert row is not None
    numbers = [number for _, value, ends in recommendation.numbers for number in re.findall(r"\d+\.\d+", f"{value} {ends}")]
    return group.model, row.case.method, numbers


def test_the_answers_of_the_readme_are_those_of_the_accepted_demo() -> None:
    values = baselines.load(DEMO)
    groups, claims = standing(values.outcomes)
    rows = {}
    for line in README.split(HEAD, 1)[1].split("\n\n", 1)[0].splitlines()[2:]:
        model, which, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        rows[model.strip("`")] = (re.findall(r"`(\w+)`", which), [number for text in figures for number in re.findall(r"\d+\.\d+", text)])
    assert rows == {model: ([method], numbers) for model, method, numbers in (recommended(group, claims) for group in groups)}
    commit = re.search(r"commit ([0-9a-f]{10})", README)
    assert commit is not None
    assert str(values.code["commit"]).startswith(commit[1])
