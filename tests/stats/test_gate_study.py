"""The gate study in small: its noise is what it says, its nights are judged as the gate judges, its tables are whole."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cachemark.stats import paired_test as pairs
from cachemark.stats.paired_test import PairRatios, Rule

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    """The script as it finds itself when run: its folder is the first on the path."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("gate_study")
    sys.path.remove(str(FOLDER))


@pytest.fixture
def rivals(study: ModuleType) -> ModuleType:
    return study.rivals


@pytest.fixture
def page(study: ModuleType) -> ModuleType:
    return study.gate_page


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_each_part_of_the_noise_is_there(study: ModuleType) -> None:
    """Parts one by one, the others switched off, against the deviation they stand for."""
    none = study.Noise(0, 0, 0, 0, 0, 0, 0, 0, 8)
    zeros = np.zeros(4000)

    def spread(**parts: float) -> tuple[float, float]:
        times = np.log(study.lone(replace(none, **parts), stream(), zeros, 8))
        return float(times.mean(axis=1).std()), float(times.std(axis=1, ddof=1).mean())

    assert spread() == (0.0, 0.0)
    assert spread(day=0.01) == pytest.approx((0.01, 0), rel=0.05, abs=1e-12)
    assert spread(process=0.02) == pytest.approx((0.02, 0), rel=0.05, abs=1e-12)
    assert spread(mode=0.5, shift=0.04) == pytest.approx((0.02, 0), rel=0.05, abs=1e-12)
    assert spread(within=0.02)[1] == pytest.approx(0.018, rel=0.1)  # neighbours are alike, so a little less than 0.02
    assert 0 < spread(outliers=0.02, size=0.1)[1] < 0.02
    assert spread(warmth=0.02)[0] == pytest.approx(0, abs=1e-12)
    assert spread(warmth=0.02)[1] > 0


def test_pairs_know_no_day_and_carry_the_effect(study: ModuleType) -> None:
    noise = study.PROFILES["unlocked"]
    effect = np.full(400, math.log1p(0.05))
    found = study.paired(noise, stream(), effect, 6)
    assert found.shape == (400, 6)
    assert float(np.median(found)) == pytest.approx(math.log1p(0.05), abs=0.001)
    other_day = study.paired(replace(noise, day=9.0), stream(), effect, 6)
    assert (found == other_day).all()
    assert study.lone(replace(noise, day=9.0), stream(), effect, 10).std() > 10 * study.lone(noise, stream(), effect, 10).std()


def test_a_night_is_judged_as_the_gate_judges_it(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study draws by stages; the same numbers given to ``judge`` as configurations give the same verdicts."""
    rule, noise = Rule(0.03, 40), study.PROFILES["unlocked"]
    effect = np.repeat([0.0, 0.05, -0.05, 0.02], 10)
    drawn: list[np.ndarray] = []
    draw = study.paired
    monkeypatch.setattr(study, "paired", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    verdicts, used = study.night(noise, stream(3), effect, rule)
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


def test_figures_of_nights(study: ModuleType) -> None:
    rule, noise = Rule(0.02, 50), study.PROFILES["locked"]
    some = study.nights(noise, stream(), rule, 0.05, 5, 4)
    assert some["power"] == 1.0
    assert some["passed though changed"] == 0.0
    assert some["false per cell"] <= 0.02
    assert 6 <= some["pairs per cell"] <= 10
    every = study.nights(noise, stream(), rule, 0.05, 50, 1)
    assert math.isnan(every["false per cell"])
    none = study.nights(noise, stream(), rule, 0.0, 0, 4)
    assert math.isnan(none["power"])
    lax = study.nights(noise, stream(), Rule(1e-4, 4, q=0.99), 0.0, 0, 100)
    assert 0 < lax["false per cell"] < lax["nights with a false alarm"], "the study would show false alarms if there were any"
    blind = study.nights(noise, stream(), replace(rule, delta=0.5), 0.05, 5, 1)
    assert (blind["power"], blind["passed though changed"]) == (0.0, 1.0)


def test_histories_have_the_noise_of_six_pairs_and_missing_nights(study: ModuleType) -> None:
    values = study.ratios_to_canary(study.PROFILES["locked"], stream(), 50, 60, alike=0.6)
    assert values.shape == (50, 60)
    assert 0.02 < float(np.isnan(values).mean()) < 0.09
    neighbours = np.stack((values[:, :-1].ravel(), values[:, 1:].ravel()))
    both = neighbours[:, ~np.isnan(neighbours).any(axis=0)]
    assert float(np.corrcoef(both)[0, 1]) == pytest.approx(0.6, abs=0.1)


def test_a_wait_ends_at_the_first_false_alarm(study: ModuleType) -> None:
    series = stream().normal(0, 0.002, (3, 60))
    assert study.wait(series, 0.02) is None
    series[1, 30:] += 0.05
    assert 30 < study.wait(series, 0.02) <= 45


def test_what_is_not_looked_at_closely_could_not_have_alarmed(study: ModuleType) -> None:
    """Weekly cycles are taken out first, and with one a step shows that would not without."""
    night = np.arange(40)
    cycle = 0.02 * np.where(night % 7 >= 5, 1.0, -1.0) * (np.arange(300) % 2)[:, None]
    series = stream().normal(0, 0.006, (300, 40)) + cycle + np.repeat([0.0, 0.03], [150, 150])[:, None] * (night >= 20)
    looked = study.may_change(series)
    alarmed = np.array([bool(study.alarms(row, 0.02)) for row in series])
    assert not (alarmed & ~looked).any()
    assert alarmed.sum() > 50
    assert (~looked).sum() > 50


def test_the_whole_study_in_small(
    study: ModuleType, page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints, stores, and writes its tables between the marks of a page, again and again."""
    monkeypatch.setitem(study.SIZES, "quick", study.Size(2, 40, 20, 2, 40, 1, 4))
    monkeypatch.setattr(study, "PROFILES", {"shared CPU": study.PROFILES["shared CPU"]})
    target, stored = tmp_path / "gate.md", tmp_path / "study.json"
    target.write_text(f"# Gate\n{page.BEGIN}\nfrom before\n{page.END}\nThe end.\n")
    monkeypatch.setattr(sys, "argv", ["gate_study.py", "--quick", "--json", str(stored), "--page", str(target)])
    study.main()
    printed, held = capsys.readouterr().out, json.loads(stored.read_text())
    assert {row["profile"] for name in study.TABLES for row in held[name]} == set(study.PROFILES)
    assert printed.count("\n## ") == len(study.TABLES)
    text = target.read_text()
    assert text.startswith("# Gate\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    for file in re.findall(r"\]\((gate-[a-z-]+\.svg)\)", text):
        assert "<svg" in (tmp_path / file).read_text()
    assert text.count("| shared CPU |") >= 10
    monkeypatch.setattr(sys, "argv", ["gate_study.py", "--only", "--json", str(stored), "--page", str(target)])
    study.main()
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


def test_rules_of_others_see_a_large_change_and_none_in_equal_runs(study: ModuleType, rivals: ModuleType) -> None:
    assert {"median", "mean"} <= set(study.SCORES)
    before = np.exp(stream().normal(0, 0.001, 10))
    known = [rule for rule in rivals.RULES if rule.score in study.SCORES]
    assert len(known) >= 2
    for rule in known:
        score = study.SCORES[rule.score]
        assert score(before, before) <= rule.parameter
        assert score(before, 1.3 * before) == pytest.approx(1.3, rel=0.01)
        assert score(before, 1.3 * before) > rule.parameter


def test_a_curve_rises_with_what_it_may_cost(study: ModuleType) -> None:
    none, some = 1 + 0.01 * stream().normal(0, 1, 4000), 1.02 + 0.01 * stream(1).normal(0, 1, 4000)
    curve = study.curve(none, some)
    assert curve[0][0] == 0.0
    assert curve == sorted(curve)
    assert curve[-1][0] > 0.5
    assert curve[-1][1] > curve[0][1] + 0.2
    assert study.family_rate(study.PER_CONFIG) == pytest.approx(0.05)


def test_waits_without_an_alarm_count_as_nights(study: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    size = replace(study.SIZES["quick"], wait=40, waits=5, watched=3)
    quiet = study.wait_row(study.PROFILES["locked"], stream(), 0.02, 0.0, size)
    assert (quiet["nights simulated"], quiet["false alarms"], quiet["nights to a false alarm"]) == (200, 0, math.inf)
    assert quiet["at least"] == pytest.approx(200 / -math.log(0.05))
    answers = iter([10, None, None, None, None])
    monkeypatch.setattr(study, "wait", lambda *_: next(answers))
    one = study.wait_row(study.PROFILES["locked"], stream(), 0.02, 0.0, size)
    assert (one["nights simulated"], one["false alarms"], one["nights to a false alarm"]) == (170, 1, 170)
    assert one["at least"] < quiet["at least"]
