"""The studies behind the pages on statistics, in small; ``tests/slow`` runs them in full."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binom

from cachemark.analysis.report_row import FIDELITY, QUALITY
from cachemark.core.units import METRICS
from cachemark.gate import nights as ledger
from cachemark.stats import changepoints
from cachemark.stats import paired_test as pairs
from cachemark.stats.paired_test import PairRatios, Rule

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "studies"


@pytest.fixture(scope="module")
def study() -> Callable[[str], ModuleType]:
    return lambda name: import_module(f"studies.{name}")


Study = Callable[[str], ModuleType]


@pytest.mark.parametrize("name", ["gate_study", "claims_study"])
def test_a_study_prints_stores_and_writes_its_tables_between_the_marks_of_a_page(
    name: str, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    script = study(name)
    marks = script.gate_page if name == "gate_study" else script
    target, stored = tmp_path / "page.md", tmp_path / "study.json"
    target.write_text(f"# Page\n{marks.BEGIN}\nfrom before\n{marks.END}\nThe end.\n")
    options = ["--json", str(stored), "--page", str(target)]
    if name == "gate_study":
        monkeypatch.setitem(script.SIZES, "quick", script.Size(2, 40, 20, 2, 40, 1, 4))
        monkeypatch.setattr(script, "PROFILES", {"shared CPU": script.PROFILES["shared CPU"]})
        kept: list[str] = []
    else:
        monkeypatch.setitem(script.SIZES, "quick", 0.003)
        monkeypatch.setattr(script, "SEEDS", (16,))
        search = [{"seeds": 4, "level": 0.05, "distributions": 1, "highest rate": 0}]
        stored.write_text(json.dumps({table: [{"made": "elsewhere"}] for table in script.TABLES} | {"search": search}))
        some = ["false", "power", "means", "times", "faster", "others"]
        kept = [table for table in script.TABLES if table not in (*some, "search")]
        options += ["--only", *some]
    monkeypatch.setattr("sys.argv", [name, "--quick", *options])
    script.main()
    values, text = json.loads(stored.read_text()), target.read_text()
    for table in script.TABLES:
        assert (values[table] == [{"made": "elsewhere"}]) == (table in kept), table
    assert text.startswith("# Page\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    for file in re.findall(r"\]\((gate-[a-z-]+\.svg)\)", text):
        assert "<svg" in (tmp_path / file).read_text()


# -- the gate ---------------------------------------------------------------------------------------------------------
def test_a_night_is_judged_as_the_gate_judges_it(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study draws by stages; the same numbers given to ``judge`` as configurations give the same verdicts."""
    script = study("gate_study")
    rule, effect = Rule(0.03, 40), np.repeat([0.0, 0.05, -0.05, 0.02], 10)
    drawn: list[np.ndarray] = []
    draw = script.paired
    monkeypatch.setattr(script, "paired", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    verdicts, used = script.night(script.PROFILES["unlocked"], np.random.default_rng(3), effect, rule)
    first, later, fresh = drawn
    seen = pairs.screen(first, rule)
    configs = {i: PairRatios(tuple(row)) for i, row in enumerate(first)}
    for i, row in zip(np.flatnonzero((seen.side == 0) & ~seen.equal), later, strict=True):
        configs[i] = PairRatios((*first[i], *row))
    shown = [i for i, config in configs.items() if pairs.screen([config.screening], rule).side[0]]
    for i, row in zip(shown, fresh, strict=True):
        configs[i] = replace(configs[i], fresh=tuple(row))
    judged = pairs.judge({str(i): config for i, config in configs.items()}, rule)
    assert verdicts == [judged[str(i)].verdict for i in configs]
    assert used.tolist() == [judged[str(i)].pairs for i in configs]
    assert set(verdicts) >= {"regressed", "improved", "equivalent"}


def test_pairs_know_no_day_and_carry_the_effect(study: Study) -> None:
    script = study("gate_study")
    noise, effect = script.PROFILES["unlocked"], np.full(400, math.log1p(0.05))
    ratios, other_day = (script.paired(each, np.random.default_rng(0), effect, 6) for each in (noise, replace(noise, day=9.0)))
    assert float(np.median(ratios)) == pytest.approx(math.log1p(0.05), abs=0.001)
    assert (ratios == other_day).all()


def test_rules_of_others_see_a_large_change_and_none_in_equal_runs(study: Study) -> None:
    script = study("gate_study")
    before = np.exp(np.random.default_rng(0).normal(0, 0.001, 10))
    known = [rule for rule in script.rivals.RULES if rule.score in script.SCORES]
    assert len(known) >= 2
    for rule in known:
        score = script.SCORES[rule.score]
        assert score(before, before) <= rule.parameter < score(before, 1.3 * before)


def test_the_rate_of_a_biased_process_is_of_nights_and_raises_what_is_asked(study: Study) -> None:
    script = study("process_bias_study")
    seen, blind = (script.Month("locked", np.random.default_rng(3), 0.01, "normal", "a night", raised) for raised in (True, False))
    for month in (seen, blind):
        for _ in range(4):
            month.night()
    assert all(blind.alarms)
    assert blind.delta == 0.02 < 3 * math.sqrt(2) * 0.01 < seen.delta, "of 200 normal values one lies three deviations away"
    assert sum(map(bool, seen.alarms)) <= 1
    standing = ledger.standing(blind.nights)
    assert standing.rate > 0.9 > 0.3 > standing.wrong / standing.configs


# -- the history of a configuration -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "weekly ± 1 %, sine", "weekly ± 1 %, weekends"])
def test_a_step_is_found_within_a_fortnight_and_unchanged_years_raise_no_alarm(kind: str, study: Study) -> None:
    script = study("history_study")
    years = np.asarray(script.KINDS[kind].years(np.random.default_rng([7, *kind.encode()]), 30))
    until = script.ONSET + changepoints.SOON
    segments = [script.segment(script.stepped(year)[:until]) for year in years[:12]]
    near = [any(c.gates and abs(c.first - script.ONSET) <= script.NEAR for c in segment.changes) for segment in segments]
    assert np.mean(near) >= 0.6
    assert script.false_years(years, every=110) <= 2, "of 30 years; a rule that does not widen has several times as many"
    rows = np.array([script.stepped(year) for year in years[:6]])
    np.testing.assert_allclose(
        script.weekly(rows), [changepoints.weekly(row, np.arange(len(row))) for row in rows], atol=1e-12,
        err_msg="years are looked at together as each is alone")


# -- claims -----------------------------------------------------------------------------------------------------------
def test_the_stored_output_keeps_what_the_page_promises(study: Study) -> None:
    script = study("claims_study")
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    assert "### Power" in script.text(stored)
    assert all(row["Gaffke (the report)"] <= 0.05 for row in stored["false"])
    assert all(row["highest rate"] <= 1.1 * row["level"] for row in stored["search"])
    for row in (*stored["means"], *stored["differences"]):
        if row["quantity"] not in script.claims_coverage.UNSEEN:
            assert min(row[f"{n} seeds"] for n in (16, 32, 64)) >= 0.93, row["quantity"]
    assert all(row[f"process bias {bias} %"] >= row["stated"] for row in stored["times"] for bias in (0, 1, 2))


def test_every_range_of_a_value_has_a_population_of_the_mean_that_it_says(study: Study) -> None:
    """A metric with another range has intervals found in another way, or with other ends: nobody has seen what they cover."""
    coverage = study("claims_study").claims_coverage
    seen = {METRICS[population.metric].within for population in coverage.MEANS.values()}
    apart = {METRICS[population.metric].apart for population in coverage.DIFFERENCES.values()}
    assert {name for name in (*FIDELITY, *QUALITY) if METRICS[name].within not in seen} == set()
    assert {name for name in QUALITY if METRICS[name].apart not in apart} == set()
    for name, (_, draw, mean) in (*coverage.MEANS.items(), *coverage.DIFFERENCES.items()):
        values = draw(np.random.default_rng(1), (400, 500))
        assert values.mean() == pytest.approx(mean, abs=6 * values.std() / np.sqrt(values.size)), name


def test_losses_lie_on_the_margin_and_rules_are_what_their_names_say(study: Study) -> None:
    script = study("claims_study")
    lost = [*script.LOSSES.values(), script.losing(np.random.default_rng(0))]
    for shares in (*lost, *script.TRUTHS.values()):
        mean = sum(value * chance for value, chance in shares.items())
        assert (sum(shares.values()), -1 <= min(shares) <= max(shares) <= 1) == (pytest.approx(1), True)
        assert mean == pytest.approx(-script.MARGIN) if shares in lost else mean > -script.MARGIN
    values, counts = np.array([-1.0, 0.0]), np.array([[lost, 400.0 - lost] for lost in range(30)])
    exact = binom.cdf(range(30), 400, 0.05) <= 0.01
    assert script.RULES["Gaffke (the report)"](values, counts, 0.05, 0.01).tolist() == exact.tolist()
    for name in ("betting, mixed", "Anderson", "Bentkus", "empirical Bernstein", "Hoeffding"):
        assert not (script.RULES[name](values, counts, 0.05, 0.01) & ~exact).any(), f"{name} tells no more than the exact test"
