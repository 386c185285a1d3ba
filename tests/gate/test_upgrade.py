"""What happens to all configurations at once is one alert about the environment, and none about configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate_examples import ENVIRONMENT, case, exchange, ok

from cachemark.core.result import Environment, Outcome
from cachemark.gate.baseline_check import compare
from cachemark.gate.upgrade import environment_verdict

METHODS = ("linear", "h2o", "window", "streaming", "random", "rkv")
NEWER = Environment("Xeon", "ci-cpu", "torch 2.7", {"torch": "2.7"})
OLDER = replace(ENVIRONMENT, facts={"torch": "2.6"})


def configs(factor: float = 1.0, output_hash: str = "cafe", **others: float) -> list[Outcome]:
    """A full cache, which is the canary of its run, and methods; all slower by a factor, some by another."""
    found = [ok(case("full"), latency=[2.0 * factor] * 3)]
    found += [ok(case(m), latency=[(1 + i / 10) * others.get(m, factor)] * 3) for i, m in enumerate(METHODS)]
    return [replace(o, output_hash=output_hash) for o in found]


def test_everything_slower_is_one_alert_about_the_environment_and_none_about_configs() -> None:
    held = exchange(configs())
    found = environment_verdict(held, configs(1.05), ENVIRONMENT, 0.02)
    assert found.alert
    assert found.shift == pytest.approx(0.05)
    assert not found.off
    assert str(found).count("\n") == 0
    assert "+5 %" in str(found)
    comparison = compare(held, configs(1.05), ENVIRONMENT, threshold=0.02)
    assert comparison.exit_code == 0
    assert not comparison.of("regressed")


def test_a_config_that_does_not_follow_is_named_and_alarms() -> None:
    held = exchange(configs())
    found = environment_verdict(held, configs(1.05, rkv=1.25), ENVIRONMENT, 0.02)
    assert found.moved is False, "6 of 7 are less than nine tenths"
    found = environment_verdict(exchange(configs() + more()), configs(1.05, rkv=1.25) + more(1.05), ENVIRONMENT, 0.02)
    assert found.moved
    assert found.off == {"tiny rkv 1/4": pytest.approx(0.25)}
    assert [r.label for r in compare(held, configs(1.05, rkv=1.25), ENVIRONMENT, threshold=0.02).of("regressed")] == ["tiny rkv 1/4"]


def more(factor: float = 1.0) -> list[Outcome]:
    return [ok(case(m, batch=4), latency=[2.0 * factor] * 3) for m in ("full", *METHODS)]


def test_nothing_happened_is_no_alert() -> None:
    held = exchange(configs())
    for now in (configs(), configs(1.01), configs(1.0, linear=1.5)):
        assert not environment_verdict(held, now, ENVIRONMENT, 0.02).alert


def test_all_outputs_changed_is_one_alert() -> None:
    found = environment_verdict(exchange(configs()), configs(output_hash="beef"), ENVIRONMENT, 0.02)
    assert (found.alert, found.moved, found.outputs) == (True, False, (7, 7))
    assert "7 of 7" in str(found)
    one = configs()
    one[1] = replace(one[1], output_hash="beef")
    assert not environment_verdict(exchange(configs()), one, ENVIRONMENT,
                                   0.02).alert, "one configuration's outputs are that configuration's matter"


def test_an_upgrade_is_named_and_hashes_are_not_held_against_configs() -> None:
    held = exchange(configs(), OLDER)
    found = environment_verdict(held, configs(output_hash="beef"), NEWER, 0.02)
    assert found.upgraded == {"torch": ("2.6", "2.7")}
    assert str(found).startswith("Environment: torch 2.6 → 2.7.")
    assert compare(held, configs(output_hash="beef"), NEWER).exit_code == 0


def test_too_few_configs_share_nothing() -> None:
    found = environment_verdict(exchange(configs()[:2]), configs(1.5, "beef")[:2], ENVIRONMENT, 0.02)
    assert (found.shift, found.moved, found.rehashed, found.alert) == (None, False, False, False)
