"""The studies behind the pages on statistics, in small: their noise, rules and pages. ``tests/slow`` simulates them in full."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

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
FOLDER = ROOT / "benchmarks"


def script(name: str) -> Callable[[], Iterator[ModuleType]]:
    """Return a fixture of a script as it is when run: its folder is the first on the path."""
    @pytest.fixture(scope="module", name=name.replace("process_", ""))
    def imported() -> Iterator[ModuleType]:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(FOLDER))
            yield import_module(name)

    return imported


gate_study, history_study, claims_study, bias_study = map(script, ("gate_study", "history_study", "claims_study", "process_bias_study"))


# -- the gate ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def rivals(gate_study: ModuleType) -> ModuleType:
    return gate_study.rivals


@pytest.fixture
def page(gate_study: ModuleType) -> ModuleType:
    return gate_study.gate_page


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_each_part_of_the_noise_is_there(gate_study: ModuleType) -> None:
    """Parts one by one, the others switched off, against the deviation they stand for."""
    none = gate_study.Noise(0, 0, 0, 0, 0, 0, 0, 0, 8)
    zeros = np.zeros(4000)

    def spread(**parts: float) -> tuple[float, float]:
        times = np.log(gate_study.lone(replace(none, **parts), stream(), zeros, 8))
        return float(times.mean(axis=1).std()), float(times.std(axis=1, ddof=1).mean())

    assert spread() == (0.0, 0.0)
    assert spread(day=0.01) == pytest.approx((0.01, 0), rel=0.05, abs=1e-12)
    assert spread(process=0.02) == pytest.approx((0.02, 0), rel=0.05, abs=1e-12)
    assert spread(mode=0.5, shift=0.04) == pytest.approx((0.02, 0), rel=0.05, abs=1e-12)
    assert spread(within=0.02)[1] == pytest.approx(0.018, rel=0.1)  # neighbours are alike, so a little less than 0.02
    assert 0 < spread(outliers=0.02, size=0.1)[1] < 0.02
    assert spread(warmth=0.02)[0] == pytest.approx(0, abs=1e-12)
    assert spread(warmth=0.02)[1] > 0


def test_pairs_know_no_day_and_carry_the_effect(gate_study: ModuleType) -> None:
    noise = gate_study.PROFILES["unlocked"]
    effect = np.full(400, math.log1p(0.05))
    found = gate_study.paired(noise, stream(), effect, 6)
    assert found.shape == (400, 6)
    assert float(np.median(found)) == pytest.approx(math.log1p(0.05), abs=0.001)
    other_day = gate_study.paired(replace(noise, day=9.0), stream(), effect, 6)
    assert (found == other_day).all()
    assert gate_study.lone(replace(noise, day=9.0), stream(), effect, 10).std() > 10 * gate_study.lone(noise, stream(), effect, 10).std()


def test_a_night_is_judged_as_the_gate_judges_it(gate_study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate_study draws by stages; the same numbers given to ``judge`` as configurations give the same verdicts."""
    rule, noise = Rule(0.03, 40), gate_study.PROFILES["unlocked"]
    effect = np.repeat([0.0, 0.05, -0.05, 0.02], 10)
    drawn: list[np.ndarray] = []
    draw = gate_study.paired
    monkeypatch.setattr(gate_study, "paired", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    verdicts, used = gate_study.night(noise, stream(3), effect, rule)
    first, later, fresh = drawn
    seen = pairs.screen(first, rule)
    still = np.flatnonzero((seen.side == 0) & ~seen.equal)
    configs = {i: PairRatios(tuple(row)) for i, row in enumerate(first)}
    configs |= {i: PairRatios((*first[i], *row)) for i, row in zip(still, later, strict=True)}
    sides = {i: pairs.screen([config.screening], rule).side[0] for i, config in configs.items()}
    for i, row in zip([i for i in configs if sides[i]], fresh, strict=True):
        configs[i] = replace(configs[i], fresh=tuple(row))
    found = pairs.judge({str(i): config for i, config in configs.items()}, rule)
    assert verdicts == [found[str(i)].verdict for i in configs]
    assert used.tolist() == [found[str(i)].pairs for i in configs]
    assert set(verdicts) >= {"regressed", "improved", "equivalent"}


def test_what_is_not_looked_at_closely_could_not_have_alarmed(gate_study: ModuleType) -> None:
    """Weekly cycles are taken out first, and with one a step shows that would not without."""
    night = np.arange(40)
    cycle = 0.02 * np.where(night % 7 >= 5, 1.0, -1.0) * (np.arange(300) % 2)[:, None]
    series = stream().normal(0, 0.006, (300, 40)) + cycle + np.repeat([0.0, 0.03], [150, 150])[:, None] * (night >= 20)
    looked = gate_study.may_change(series)
    alarmed = np.array([bool(gate_study.alarms(row, 0.02)) for row in series])
    assert not (alarmed & ~looked).any()
    assert alarmed.sum() > 50
    assert (~looked).sum() > 50


def test_the_whole_study_of_the_gate_in_small(
    gate_study: ModuleType, page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints, stores, and writes its tables between the marks of a page, again and again."""
    monkeypatch.setitem(gate_study.SIZES, "quick", gate_study.Size(2, 40, 20, 2, 40, 1, 4))
    monkeypatch.setattr(gate_study, "PROFILES", {"shared CPU": gate_study.PROFILES["shared CPU"]})
    target, stored = tmp_path / "gate.md", tmp_path / "study.json"
    target.write_text(f"# Gate\n{page.BEGIN}\nfrom before\n{page.END}\nThe end.\n")
    monkeypatch.setattr(sys, "argv", ["gate_study.py", "--quick", "--json", str(stored), "--page", str(target)])
    gate_study.main()
    printed, held = capsys.readouterr().out, json.loads(stored.read_text())
    assert {row["profile"] for name in gate_study.TABLES for row in held[name]} == set(gate_study.PROFILES)
    assert printed.count("\n## ") == len(gate_study.TABLES)
    text = target.read_text()
    assert text.startswith("# Gate\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    for file in re.findall(r"\]\((gate-[a-z-]+\.svg)\)", text):
        assert "<svg" in (tmp_path / file).read_text()
    assert text.count("| shared CPU |") >= 10
    monkeypatch.setattr(sys, "argv", ["gate_study.py", "--only", "--json", str(stored), "--page", str(target)])
    gate_study.main()
    assert target.read_text() == text


def test_rules_on_histories(rivals: ModuleType) -> None:
    flat = np.exp(stream().normal(0, 0.002, 60))
    jump = np.append(flat[:-1], 2.0)
    for by in (rivals.by_z_score, rivals.by_fence):
        assert (by(jump), by(flat)) == (True, False)
    risen = flat * np.where(np.arange(60) > 30, 1.2, 1.0)
    for name, shows in (("asv", rivals.by_asv_publish), ("otava", rivals.by_otava)):
        if rivals.installed(name):
            assert (shows(risen), shows(flat), shows(1 / risen)) == (True, False, False)


def test_rules_of_others_see_a_large_change_and_none_in_equal_runs(gate_study: ModuleType, rivals: ModuleType) -> None:
    assert {"median", "mean"} <= set(gate_study.SCORES)
    before = np.exp(stream().normal(0, 0.001, 10))
    known = [rule for rule in rivals.RULES if rule.score in gate_study.SCORES]
    assert len(known) >= 2
    for rule in known:
        score = gate_study.SCORES[rule.score]
        assert score(before, before) <= rule.parameter
        assert score(before, 1.3 * before) == pytest.approx(1.3, rel=0.01)
        assert score(before, 1.3 * before) > rule.parameter


# -- the history of a configuration -----------------------------------------------------------------------------------
SEED, YEARS = 7, 30
SOME = ("AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "weekly ± 1 %, sine", "weekly ± 1 %, weekends")


def years(history_study: ModuleType, kind: str, count: int = YEARS) -> np.ndarray:
    return np.asarray(history_study.KINDS[kind].years(np.random.default_rng([SEED, *kind.encode()]), count))


def test_the_noise_is_what_its_name_says(history_study: ModuleType) -> None:
    noise = years(history_study, "AR(1) 0.6, 2 %", 100)
    assert noise.std() == pytest.approx(0.02, rel=0.05)
    assert np.mean([np.corrcoef(year[:-1], year[1:])[0, 1] for year in noise]) == pytest.approx(0.6, abs=0.03)
    cycle = years(history_study, "weekly ± 1 %, weekends", 100).mean(axis=0)
    assert [round(float(cycle[day::7].mean()), 3) for day in range(7)] == [-0.01] * 5 + [0.01] * 2


@pytest.mark.parametrize("kind", SOME)
def test_a_step_of_a_twentieth_is_found_within_a_fortnight(kind: str, history_study: ModuleType) -> None:
    until = history_study.ONSET + changepoints.SOON
    found = [history_study.segment(history_study.stepped(year)[:until]) for year in years(history_study, kind, 12)]
    near = [any(c.gates and abs(c.first - history_study.ONSET) <= history_study.NEAR for c in segment.changes) for segment in found]
    assert np.mean(near) >= 0.6


def test_years_are_looked_at_together_as_each_is_alone(history_study: ModuleType) -> None:
    for kind, last in itertools.product(SOME, (30, 100, 210)):
        rows = np.array([history_study.stepped(year)[:last] for year in years(history_study, kind, 6)])
        np.testing.assert_allclose(history_study.weekly(rows), [changepoints.weekly(row, np.arange(last)) for row in rows], atol=1e-12)
        changed = np.array([bool(history_study.segment(row).changes) for row in rows])
        assert history_study.may_change(rows)[changed].all()
        assert changed.all() if last > history_study.ONSET else not changed.any()


@pytest.mark.parametrize("kind", SOME)
def test_unchanged_years_raise_no_alarm(kind: str, history_study: ModuleType) -> None:
    alarms = history_study.false_years(years(history_study, kind), every=110)
    assert alarms <= 2, "of 30 years; a rule that does not widen has several times as many"


def test_a_series_that_cannot_show_a_step_says_which_it_can(history_study: ModuleType) -> None:
    calm, wild = ([history_study.segment(year[: history_study.ONSET]) for year in years(history_study, kind, 5)]
                  for kind in ("independent nights, 1 %", "AR(1) 0.6, 2 %"))
    assert np.median([segment.shows for segment in calm]) < history_study.STEP < np.median([segment.shows for segment in wild]) < 0.2
    assert wild[0].blind.startswith("its nights vary so much, or are so alike (correlation 0.")
    assert "may not show within 14 nights" in wild[0].blind


def test_what_a_series_says_it_shows_is_mostly_found_and_half_of_it_is_not(history_study: ModuleType) -> None:
    def found(share: float) -> int:
        held = 0
        for year in years(history_study, "AR(1) 0.6, 2 %", 12):
            size = math.log1p(share * history_study.segment(year[: history_study.ONSET]).shows)
            moved = (year + size * (np.arange(history_study.NIGHTS) >= history_study.ONSET))[: history_study.ONSET + changepoints.SOON]
            held += any(abs(c.first - history_study.ONSET) <= changepoints.SOON for c in history_study.gating(moved))
        return held

    assert found(0.5) <= 6 < 9 <= found(1.0)


@pytest.mark.parametrize("weeks", [3, 12])
def test_a_cycle_is_taken_out_as_soon_as_four_weeks_show_it(weeks: int) -> None:
    days = np.arange(7 * weeks)
    cycle = 0.02 * np.where(days % 7 >= 5, 1.0, -1.0)
    x = cycle + np.random.default_rng(SEED).normal(0, 0.002, len(days)) + 0.05 * (days >= 40)
    owed = changepoints.weekly(x, days)
    assert (np.corrcoef(owed, cycle)[0, 1] > 0.95 if weeks >= changepoints.WEEKS else not owed.any())
    assert not changepoints.weekly(x - cycle, days).any(), "a step is no cycle"


def test_the_weekday_is_that_of_the_date_and_not_of_the_number_of_nights() -> None:
    """With nights left out, the night seven nights ago is another weekday."""
    kept = np.flatnonzero(np.random.default_rng(SEED).random(240) > 0.3)
    cycle = 0.03 * np.where(kept % 7 >= 5, 1.0, -1.0)
    x = cycle + np.random.default_rng(SEED).normal(0, 0.003, len(kept))
    assert np.corrcoef(changepoints.weekly(x, kept), cycle)[0, 1] > 0.95
    assert not changepoints.weekly(x, np.arange(len(kept))).any()


# -- claims -----------------------------------------------------------------------------------------------------------
def test_the_page_holds_the_stored_output(claims_study: ModuleType) -> None:
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "results" / "validation.md").read_text(encoding="utf-8")
    assert page.split(claims_study.BEGIN)[1].split(claims_study.END)[0].strip() == claims_study.text(stored)
    assert stored.keys() == {*claims_study.TABLES, "seconds", "seed"}


def test_what_the_page_promises_is_in_its_tables(claims_study: ModuleType) -> None:
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    assert all(row["Gaffke (the report)"] <= 0.05 for row in stored["false"])
    assert all(row["highest rate"] <= 1.1 * row["level"] for row in stored["search"])
    for row in (*stored["means"], *stored["differences"]):
        if row["quantity"] not in claims_study.claims_coverage.UNSEEN:
            assert min(row[f"{n} seeds"] for n in (16, 32, 64)) >= 0.93, row["quantity"]
    assert all(row[f"process bias {bias} %"] >= row["stated"] for row in stored["times"] for bias in (0, 1, 2))


def test_every_range_of_a_figure_has_a_population(claims_study: ModuleType) -> None:
    """A metric with another range has intervals found in another way, or with other ends: nobody has seen what they cover."""
    coverage = claims_study.claims_coverage
    seen = {METRICS[one.metric].within for one in coverage.MEANS.values()}
    apart = {METRICS[one.metric].apart for one in coverage.DIFFERENCES.values()}
    of_images = [METRICS[name] for name in (*FIDELITY, *QUALITY)]
    assert {metric.name for metric in of_images if metric.within not in seen} == set()
    assert {METRICS[name].name for name in QUALITY if METRICS[name].apart not in apart} == set()


def test_every_loss_is_the_margin_and_every_truth_is_less(claims_study: ModuleType) -> None:
    for name, shares in (*claims_study.LOSSES.items(), *claims_study.TRUTHS.items()):
        values, chances = (np.array(list(side)) for side in (shares.keys(), shares.values()))
        assert chances.sum() == pytest.approx(1), name
        assert -1 <= values.min() <= values.max() <= 1
        mean = values @ chances
        assert mean == pytest.approx(-claims_study.MARGIN) if shares is claims_study.LOSSES.get(name) else mean > -claims_study.MARGIN
    for seed in range(20):
        shares = claims_study.losing(np.random.default_rng(seed))
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(value * chance for value, chance in shares.items()) == pytest.approx(-claims_study.MARGIN)
        assert min(shares.values()) >= 0
        assert min(shares) >= -1


def test_every_population_has_the_mean_that_it_says(claims_study: ModuleType) -> None:
    for name, (_, draw, mean) in (*claims_study.claims_coverage.MEANS.items(), *claims_study.claims_coverage.DIFFERENCES.items()):
        values = draw(np.random.default_rng(1), (400, 500))
        assert values.mean() == pytest.approx(mean, abs=6 * values.std() / np.sqrt(values.size)), name


def test_rules_are_what_their_names_say(claims_study: ModuleType) -> None:
    rules, values = claims_study.RULES, np.array([-1.0, 0.0])
    counts = np.array([[lost, 400.0 - lost] for lost in range(30)])
    exact = binom.cdf(range(30), 400, 0.05) <= 0.01
    assert rules["Gaffke (the report)"](values, counts, 0.05, 0.01).tolist() == exact.tolist()
    for name in ("betting, mixed", "Anderson", "Bentkus", "empirical Bernstein", "Hoeffding"):
        told = rules[name](values, counts, 0.05, 0.01)
        assert not (told & ~exact).any(), f"{name} is proven, so it tells no more than the exact test"
        many = rules[name](values, np.array([[0.0, 20_000.0], [1000.0, 19_000.0]]), 0.05, 0.01)
        assert many.tolist() == [True, False]
    assert rules["Student"](values, counts[:1], 0.05, 0.01).all()


def test_the_whole_study_of_claims_in_small(claims_study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(claims_study.SIZES, "quick", 0.003)
    monkeypatch.setattr(claims_study, "SEEDS", (16,))
    search = [{"seeds": 4, "level": 0.05, "distributions": 1, "highest rate": 0}]
    target, stored = tmp_path / "claims.md", tmp_path / "claims.json"
    target.write_text(f"# Claims\n{claims_study.BEGIN}\nfrom before\n{claims_study.END}\nThe end.\n")
    some = ["false", "power", "means", "times", "faster", "others"]
    stored.write_text(json.dumps({name: [{"made": "elsewhere"}] for name in claims_study.TABLES} | {"search": search}))
    monkeypatch.setattr(sys, "argv", ["claims_study.py", "--quick", "--only", *some, "--json", str(stored), "--page", str(target)])
    claims_study.main()
    held, text = json.loads(stored.read_text()), target.read_text()
    assert all(held[name] != [{"made": "elsewhere"}] for name in some)
    assert held["sets"] == [{"made": "elsewhere"}], "and what was not asked for is taken from the file"
    assert text.startswith("# Claims\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    assert claims_study.text(held) in text
    with pytest.raises(SystemExit, match="lacks the marks"):
        claims_study.write(ROOT / "docs" / "reference" / "models.md", held)


# -- process bias -----------------------------------------------------------------------------------------------------
def month(bias_study: ModuleType, *, raised: bool, nights: int = 4) -> Any:
    made = bias_study.Month("locked", np.random.default_rng(3), 0.01, "normal", "a night", raised)
    for _ in range(nights):
        made.night()
    return made


def test_process_bias_is_reported_from_the_first_night_on_and_raises_what_is_asked(bias_study: ModuleType) -> None:
    seen, blind = month(bias_study, raised=True), month(bias_study, raised=False)
    assert all(blind.alarms)
    assert blind.delta == 0.02 < 3 * math.sqrt(2) * 0.01 < seen.delta, "of 200 normal values one lies three deviations away"
    assert sum(map(bool, seen.alarms)) <= 1


def test_the_rate_that_is_printed_is_of_nights_and_not_of_configs(bias_study: ModuleType) -> None:
    standing = ledger.standing(month(bias_study, raised=False, nights=12).nights)
    assert standing.wrong / standing.configs < 0.3
    assert standing.rate > 0.9
    assert standing.advisory
