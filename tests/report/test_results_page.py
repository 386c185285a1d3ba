"""Tables of docs/results.md from stores: figures are the report's, and what is missing shows."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachemark.analysis.quality_claims import standing
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, canonical
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.store.db import Store

ROOT = Path(__file__).parents[2]
MOST = 20_000  # bytes of a file of values
PLANS = ("rivals", "gtr", "codecs", "prompts", "text-caches", "compute")
HERE = Environment("Example CPU", "cpu-example", "5f1c0a7be2d94410", {"threads": 2, "torch": "2.15.0"})
CODE = {"commit": "3f9a61c0d2b7e845c1a0", "dirty": False, "hash": "b1946ac92492d234", "version": "0.1.0"}


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as it finds itself when run: its folder is the first on the path."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield import_module("results_page")
    sys.path.remove(str(ROOT / "benchmarks"))


def shares(stream: random.Random, count: int, mean: float) -> list[float]:
    return [float(stream.random() < mean) for _ in range(count)]


def outcome(case: Case, judged: bool = True) -> Outcome:
    """An outcome with invented values of the right shape: every tenth of a budget that is missing costs ten of FID."""
    stream, gone = random.Random(case.key), 1 - share_of(case.budget)
    candidate, images = case.role in ("candidate", "baseline"), case.samples
    of_vectors = case.model == "tiny-mar"
    near = 0.05 if case.role == "other_seeds" else 1 - gone / 2
    samples: dict[str, list[float]] = {"token_distance": [1 - near] * images} if of_vectors else {"token_agreement": [near] * images}
    if case.role != "other_seeds" and case.method != "gtr":
        samples["forced_distance" if of_vectors else "kl"] = [gone * stream.uniform(0.5, 1.5) for _ in range(images)]
    if case.model == "tiny-t2i":
        samples |= {f"prompt_{part}": shares(stream, images, 0.95 - gone / 3)
                    for part in ("score", "object", "colour", "count", "position", "ground")}
    facts: dict[str, Any] = {"paradigm": "masked" if of_vectors else "next-token"}
    if candidate:
        rounded = {"native": 1.0, "int8": 0.281, "fp8": 0.281, "int4": 0.156, "kivi4": 0.18}[case.codec]
        live = 1e6 * (1 - gone) * rounded
        samples |= {"latency": [2.0 - gone, 2.01 - gone, 1.99 - gone]}
        samples |= {"kv_logical": [live], "kv_allocated": [live + 1e5], "kv_workspace": [1e5], "kv_state": [0.0]}
        samples |= {"flops": [1e9 * (1 - gone)]} if of_vectors else {}
    if candidate and judged and "quality" in case.evaluation:
        sets = {"fid_scene_2k": 10 + 100 * gone, "precision_scene_2k": 0.9 - gone / 4, "recall_scene_2k": 0.8, "class_accuracy": 0.9}
        samples |= {name: [value] for name, value in sets.items()}
        facts["intervals"] = {name: [0.95 * value, 1.05 * value] for name, value in sets.items()}
        if case.role == "candidate":
            facts["to_full"] = {"fid_scene_2k": [100 * gone, 90 * gone - 1, 110 * gone + 1]}
    return Outcome(case, Status.OK, samples, facts=facts)


def share_of(budget: str) -> float:
    above, _, below = budget.partition("/")
    return float(above) / float(below or 1)


def stored(path: Path, plan: str, outcomes: list[Outcome], here: Environment = HERE, state: str = "finished") -> Path:
    with Store.open(path) as store:
        number = store.begin_run(plan, {"name": plan}, here, CODE)
        for case_item in outcomes:
            store.save(number, case_item)
        store.finish_run(number, state)
    return path


@cache
def cases(plan: str) -> list[Case]:
    return [planned.case for planned in expand(load(plan))]


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of the first table whose head has this column."""
    lines = re.split(r"\n\n", text)
    result = next(part for part in lines if part.startswith("|") and f"| {head} |" in part.splitlines()[0])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (result.splitlines()[0], *result.splitlines()[2:])]


def column(text: str, head: str) -> dict[str, str]:
    """A column of that table by the text of the cells before its budget, and the budget."""
    first, *alternatives = rows(text, head)
    place, key = first.index(head), first.index("budget")
    return {" ".join(cell for cell in row[: key + 1] if cell).replace("\\", ""): row[place] for row in alternatives}


def test_the_page_holds_what_the_stored_figures_make(script: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for plan in script.SECTIONS:
        begin, end = script.marks(plan)
        retained = script.FOLDER / f"{plan}.json"
        assert not retained.exists() or retained.stat().st_size <= MOST, plan
        expected = script.text(json.loads(retained.read_text(encoding="utf-8"))) if retained.exists() else ""
        assert page.split(begin)[1].split(end)[0].strip() == expected, plan
    listed = page.split(script.CONTENTS[0])[1].split(script.CONTENTS[1])[0].strip()
    assert listed == script.contents(ROOT / "docs" / "results.md")


@pytest.mark.parametrize("plan", PLANS)
def test_every_case_of_a_plan_has_its_rows(plan: str, script: ModuleType, tmp_path: Path) -> None:
    planned = cases(plan)
    store = stored(tmp_path / "s.sqlite", plan, [outcome(case) for case in planned])
    values = script.take(store, plan)
    text = script.text(json.loads(json.dumps(values)))
    first = rows(text, "KL, nat/token" if plan != "gtr" else "forced distance")
    models = len({case.model for case in planned})
    count = models * (2 if plan == "prompts" else 1)
    assert text.count("| *full, different seeds*") == text.count("| *full, different batch size*") == count
    assert len(canonical(values)) < MOST
    assert f"`cachemark run {plan}`, commit 3f9a61c0d2, Example CPU, 2 threads, torch 2.15.0, fp32" in text
    candidates = [case for case in planned if case.role == "candidate" and case.model == planned[0].model]
    assert len([row for row in first[1:] if not any(cell.startswith("*") for cell in row)]) == len(candidates) + 1
    if plan not in ("codecs", "gtr", "compute"):
        named = [[cell.replace("\\", "") for cell in row[:2]] for row in first[2:]]
        assert named[: len(candidates)] == [[case.method, case.label.split()[1]] for case in candidates]
    assert max(len(line) for line in text.splitlines() if not line.startswith(("| ", "- "))) <= 140


def test_figures_and_what_is_shown_are_the_report_s(script: ModuleType, tmp_path: Path) -> None:
    outcomes = [outcome(case) for case in cases("rivals")]
    values = script.take(stored(tmp_path / "s.sqlite", "rivals", outcomes), "rivals")
    text = script.text(values)
    (group,), claims = standing(outcomes)
    fid, less, agreement = column(text, "FID"), column(text, "FID − full"), column(text, "same tokens")
    printed = column(text, "verdict")
    for row in group.candidates:
        label, name = row.case.label, "fid_scene_2k"
        assert fid[label] == "{:.1f}\\* [{:.1f}, {:.1f}]".format(*ends(row.quality[name]))
        assert less[label] == "{:.1f} [{:.1f}, {:.1f}]".format(*ends(row.to_full[name]))
        assert agreement[label] == "{:.3f} [{:.3f}, {:.3f}]".format(*ends(row.fidelity["token_agreement"]))
        assert printed[label] == ("non-inferior" if claims[row.case.key].non_inferior and not row.unranked else "inconclusive")
        assert "*" not in column(text, "class accuracy")[label], "its difference is not known"
        assert column(text, "live")[label] == column(text, "without workspace")[label] == f"{share_of(row.case.budget):.3f}"
        assert column(text, "allocated")[label] == f"{(share_of(row.case.budget) + 0.1) / 1.1:.3f}"
    assert "18 of 18 differences exclude 0, 0.9 expected by chance." in " ".join(text.split())


def ends(result: Any) -> tuple[float, float, float]:
    return result.value, result.low, result.high


def test_a_method_that_is_as_good_is_shown_to_be(script: ModuleType, tmp_path: Path) -> None:
    """Else the column could say one thing of all."""
    outcomes = [outcome(case) for case in cases("rivals")]
    good = next(place for place, case_item in enumerate(outcomes) if case_item.case.label == "window 0.62")
    outcomes[good] = replace(outcomes[good], facts={**outcomes[good].facts, "to_full": {"fid_scene_2k": [0.0, -0.1, 0.1]}})
    text = script.text(script.take(stored(tmp_path / "s.sqlite", "rivals", outcomes), "rivals"))
    assert [label for label, message in column(text, "verdict").items() if message == "non-inferior"] == ["window 0.62"]
    assert "*" not in column(text, "FID")["window 0.62"]


def test_what_is_missing_shows_as_missing(script: ModuleType, tmp_path: Path) -> None:
    planned = cases("rivals")
    outcomes = [outcome(case, judged=case.method != "h2o") for case in planned[:16]]
    outcomes[15] = Outcome(outcomes[15].case, Status.OOM, log="4.1 GiB wanted")
    store = stored(tmp_path / "s.sqlite", "rivals", outcomes, state="interrupted")
    text = script.text(script.take(store, "rivals"))
    assert column(text, "FID")["h2o 0.62"] == column(text, "verdict")["h2o 0.62"] == "–" != column(text, "live")["h2o 0.62"]
    assert column(text, "FID")["random 3/10"] == column(text, "live")["random 3/10"] == "–"
    assert "- streaming 0.62: oom: 4.1 GiB wanted" in text.replace("\\", "")
    assert re.search(r"- .*random 3/10: not reached", text)
    assert "the run is interrupted" in text


def test_tables_of_decoders_are_those_of_the_kept_figures(script: ModuleType) -> None:
    decoders = import_module("decoders_page")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    retained = json.loads((ROOT / "benchmarks" / "decoders.json").read_text(encoding="utf-8"))
    assert page.split(decoders.BEGIN)[1].split(decoders.END)[0].strip() == decoders.text(retained)


def test_contents_link_to_headings_as_markdown_names_them(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Results\n\n## MARché, at 2×\n\n### Its cost\n", encoding="utf-8")
    assert script.contents(tmp_path / "page.md") == "- [MARché, at 2×](#marche-at-2)\n    - [Its cost](#its-cost)"
