"""What happens to all cells at once is one alert about the environment, and none about cells."""

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


def cells(factor: float = 1.0, output_hash: str = "cafe", **others: float) -> list[Outcome]:
    """A full cache, which is the canary of its run, and methods; all slower by a factor, some by another."""
    found = [ok(case("full"), latency=[2.0 * factor] * 3)]
    found += [ok(case(m), latency=[(1 + i / 10) * others.get(m, factor)] * 3) for i, m in enumerate(METHODS)]
    return [replace(o, output_hash=output_hash) for o in found]


def test_everything_slower_is_one_alert_about_the_environment_and_none_about_cells() -> None:
    held = exchange(cells())
    found = environment_verdict(held, cells(1.05), ENVIRONMENT, 0.02)
    assert found.alert
    assert found.shift == pytest.approx(0.05)
    assert not found.off
    assert str(found).count("\n") == 0
    assert "+5 %" in str(found)
    comparison = compare(held, cells(1.05), ENVIRONMENT, threshold=0.02)
    assert comparison.exit_code == 0
    assert not comparison.of("regressed")


def test_a_cell_that_does_not_follow_is_named_and_alarms() -> None:
    held = exchange(cells())
    found = environment_verdict(held, cells(1.05, rkv=1.25), ENVIRONMENT, 0.02)
    assert found.moved is False, "6 of 7 are less than nine tenths"
    found = environment_verdict(exchange(cells() + more()), cells(1.05, rkv=1.25) + more(1.05), ENVIRONMENT, 0.02)
    assert found.moved
    assert found.off == {"tiny rkv 1/4": pytest.approx(0.25)}
    assert [r.label for r in compare(held, cells(1.05, rkv=1.25), ENVIRONMENT, threshold=0.02).of("regressed")] == ["tiny rkv 1/4"]


def more(factor: float = 1.0) -> list[Outcome]:
    return [ok(case(m, batch=4), latency=[2.0 * factor] * 3) for m in ("full", *METHODS)]


def test_nothing_happened_is_no_alert() -> None:
    held = exchange(cells())
    for now in (cells(), cells(1.01), cells(1.0, linear=1.5)):
        assert not environment_verdict(held, now, ENVIRONMENT, 0.02).alert


def test_all_outputs_changed_is_one_alert() -> None:
    found = environment_verdict(exchange(cells()), cells(output_hash="beef"), ENVIRONMENT, 0.02)
    assert (found.alert, found.moved, found.outputs) == (True, False, (7, 7))
    assert "7 of 7" in str(found)
    one = cells()
    one[1] = replace(one[1], output_hash="beef")
    assert not environment_verdict(exchange(cells()), one, ENVIRONMENT, 0.02).alert, "one cell's outputs are that cell's matter"


def test_an_upgrade_is_named_and_hashes_are_not_held_against_cells() -> None:
    held = exchange(cells(), OLDER)
    found = environment_verdict(held, cells(output_hash="beef"), NEWER, 0.02)
    assert found.upgraded == {"torch": ("2.6", "2.7")}
    assert str(found).startswith("Environment: torch 2.6 → 2.7.")
    assert compare(held, cells(output_hash="beef"), NEWER).exit_code == 0


def test_too_few_cells_share_nothing() -> None:
    found = environment_verdict(exchange(cells()[:2]), cells(1.5, "beef")[:2], ENVIRONMENT, 0.02)
    assert (found.shift, found.moved, found.rehashed, found.alert) == (None, False, False, False)
