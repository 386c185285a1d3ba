"""Cheats in a run and its report: each has its flag in log, outcome and page, and neither a place nor a ratio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cachemark.analysis.case_group import case_groups
from cachemark.core.result import CHANGED, Outcome
from support import stages
from support.stages import Stage, call

from .cheating import CHEATS, COMPILED, HONEST, Cheat

FAST = ("masks instead of evicting", "slows the full cache by a hook")


def ran(folder: Path, cheats: Mapping[str, Cheat]) -> tuple[Stage, str]:
    """A run of these plug-ins by name, with what it said."""
    stage = stages.stage(folder, ", ".join(f'"{name}"' for name in cheats))
    plugins = [option for name, cheat in cheats.items() for option in ("--plugin", cheat.write(folder, name))]
    result = stage.run(*plugins, "--report", folder / "report.html")
    assert result.exit_code in (0, 1), result.output
    return stage, result.output


def flagged(outcome: Outcome, said: str) -> None:
    """It has figures and a flag, or, where what it has changed is in its figures, none of them and the reason."""
    told = [*outcome.flags, *outcome.facts.get(CHANGED, ())]
    assert any(said in flag for flag in told), (told, outcome.log)
    if outcome.ok:
        assert said in " ".join(outcome.facts["footnotes"])
        assert outcome.facts["quality_only"]
    else:
        assert outcome.reason.startswith("Changed while it ran")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, str]:
    cheats = {f"plain{number}": CHEATS[what] for number, what in enumerate(FAST)}
    return ran(tmp_path_factory.mktemp("cheats") / "stage", {"honest": HONEST, "compiled": COMPILED, **cheats})


def test_a_run_flags_what_cheats_and_nothing_else(run: tuple[Stage, str]) -> None:
    outcomes = run[0].outcomes()
    for number, what in enumerate(FAST):
        flagged(outcomes[f"plain{number} 1/2"], CHEATS[what].said)
    for label in ("full", "full (floor)", "calm 1/2", "honest 1/2", "compiled 1/2"):
        assert outcomes[label].ok
        assert not outcomes[label].flags
        assert CHANGED not in outcomes[label].facts
    assert outcomes["honest 1/2"].facts["inspected"]["seconds"] > 0
    assert "inspected" not in outcomes["full"].facts


def test_it_is_said_in_the_log_the_outcome_and_the_page(run: tuple[Stage, str]) -> None:
    stage, log = run
    assert log.count("flagged: ") >= len(FAST)
    for what in FAST:
        assert CHEATS[what].said in log
    key = stage.outcomes()["plain0 1/2"].case.key
    assert CHEATS[FAST[0]].said in call("show", key, "--store", stage.store).output
    assert json.loads(json.dumps(stage.outcomes()["plain0 1/2"].to_json()))["facts"]["flagged"]
    page = (stage.folder / "report.html").read_text()
    assert page.count(">flagged</span>") >= len(FAST)
    assert CHEATS[FAST[0]].said in page


def test_it_has_no_place_and_no_ratio(run: tuple[Stage, str]) -> None:
    rows = {row.case.label: row for group in case_groups(list(run[0].outcomes().values())) for row in group.arms}
    for number in range(len(FAST)):
        row = rows[f"plain{number} 1/2"]
        assert (row.place, row.speed_up, row.saving, row.lossless) == (None, None, None, False)
        assert {mark.text for mark in row.marks} == {"flagged"}
    assert rows["honest 1/2"].saving is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("named", ["cheat{}", "streaming{}"])
def test_every_cheat_is_flagged_under_any_name(named: str, tmp_path: Path) -> None:
    stage, _ = ran(tmp_path / "stage", {named.format(number): cheat for number, cheat in enumerate(CHEATS.values())})
    outcomes, page = stage.outcomes(), (tmp_path / "stage" / "report.html").read_text()
    for number, cheat in enumerate(CHEATS.values()):
        flagged(outcomes[f"{named.format(number)} 1/2"], cheat.said)
    assert page.count(">flagged</span>") >= sum(outcome.ok and bool(outcome.flags) for outcome in outcomes.values())
