"""The study of claims in small: its rules are what they say, its page is its stored output, and all of it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binom

from cachemark.analysis.report_row import FIDELITY, QUALITY
from cachemark.core.units import METRICS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    """The script as it finds itself when run: its folder is the first on the path."""
    sys.path.insert(0, str(FOLDER))
    yield import_module("claims_study")
    sys.path.remove(str(FOLDER))


def test_the_page_holds_the_stored_output(study: ModuleType) -> None:
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "validation.md").read_text(encoding="utf-8")
    assert page.split(study.BEGIN)[1].split(study.END)[0].strip() == study.text(stored)
    assert stored.keys() == {*study.TABLES, "seconds", "seed"}


def test_what_the_page_promises_is_in_its_tables(study: ModuleType) -> None:
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    assert all(row["Gaffke (the report)"] <= 0.05 for row in stored["false"])
    assert all(row["highest rate"] <= 1.1 * row["level"] for row in stored["search"])
    for row in (*stored["means"], *stored["differences"]):
        if row["quantity"] not in study.claims_coverage.UNSEEN:
            assert min(row[f"{n} seeds"] for n in (16, 32, 64)) >= 0.93, row["quantity"]
    assert all(row[f"process bias {bias} %"] >= row["stated"] for row in stored["times"] for bias in (0, 1, 2))


def test_every_range_of_a_figure_has_a_population(study: ModuleType) -> None:
    """A metric with another range has intervals found in another way, or with other ends: nobody has seen what they cover."""
    coverage = study.claims_coverage
    seen = {METRICS[one.metric].within for one in coverage.MEANS.values()}
    apart = {METRICS[one.metric].apart for one in coverage.DIFFERENCES.values()}
    of_images = [METRICS[name] for name in (*FIDELITY, *QUALITY)]
    assert {metric.name for metric in of_images if metric.within not in seen} == set()
    assert {METRICS[name].name for name in QUALITY if METRICS[name].apart not in apart} == set()


def test_every_loss_is_the_margin_and_every_truth_is_less(study: ModuleType) -> None:
    for name, shares in (*study.LOSSES.items(), *study.TRUTHS.items()):
        values, chances = (np.array(list(side)) for side in (shares.keys(), shares.values()))
        assert chances.sum() == pytest.approx(1), name
        assert -1 <= values.min() <= values.max() <= 1
        mean = values @ chances
        assert mean == pytest.approx(-study.MARGIN) if shares is study.LOSSES.get(name) else mean > -study.MARGIN
    for seed in range(20):
        shares = study.losing(np.random.default_rng(seed))
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(value * chance for value, chance in shares.items()) == pytest.approx(-study.MARGIN)
        assert min(shares.values()) >= 0
        assert min(shares) >= -1


def test_every_population_has_the_mean_that_it_says(study: ModuleType) -> None:
    for name, (_, draw, mean) in (*study.claims_coverage.MEANS.items(), *study.claims_coverage.DIFFERENCES.items()):
        values = draw(np.random.default_rng(1), (400, 500))
        assert values.mean() == pytest.approx(mean, abs=6 * values.std() / np.sqrt(values.size)), name


def test_rules_are_what_their_names_say(study: ModuleType) -> None:
    rules, values = study.RULES, np.array([-1.0, 0.0])
    counts = np.array([[lost, 400.0 - lost] for lost in range(30)])
    exact = binom.cdf(range(30), 400, 0.05) <= 0.01
    assert rules["Gaffke (the report)"](values, counts, 0.05, 0.01).tolist() == exact.tolist()
    for name in ("betting, mixed", "Anderson", "Bentkus", "empirical Bernstein", "Hoeffding"):
        told = rules[name](values, counts, 0.05, 0.01)
        assert not (told & ~exact).any(), f"{name} is proven, so it tells no more than the exact test"
        many = rules[name](values, np.array([[0.0, 20_000.0], [1000.0, 19_000.0]]), 0.05, 0.01)
        assert many.tolist() == [True, False]
    assert rules["Student"](values, counts[:1], 0.05, 0.01).all()


def test_the_whole_study_in_small(study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.SIZES, "quick", 0.003)
    monkeypatch.setattr(study, "SEEDS", (16,))
    search = [{"seeds": 4, "level": 0.05, "distributions": 1, "highest rate": 0}]
    target, stored = tmp_path / "claims.md", tmp_path / "claims.json"
    target.write_text(f"# Claims\n{study.BEGIN}\nfrom before\n{study.END}\nThe end.\n")
    some = ["false", "power", "means", "times", "faster", "others"]
    stored.write_text(json.dumps({name: [{"made": "elsewhere"}] for name in study.TABLES} | {"search": search}))
    monkeypatch.setattr(sys, "argv", ["claims_study.py", "--quick", "--only", *some, "--json", str(stored), "--page", str(target)])
    study.main()
    held, text = json.loads(stored.read_text()), target.read_text()
    assert all(held[name] != [{"made": "elsewhere"}] for name in some)
    assert held["sets"] == [{"made": "elsewhere"}], "and what was not asked for is taken from the file"
    assert text.startswith("# Claims\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    assert study.text(held) in text
    with pytest.raises(SystemExit, match="lacks the marks"):
        study.write(ROOT / "docs" / "reference" / "models.md", held)
