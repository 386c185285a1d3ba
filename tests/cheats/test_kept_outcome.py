"""The outcome that was measured is kept, whatever its method raises while it is inspected."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core import plugins
from cachemark.core.result import CHANGED, INSPECTED, Outcome, Status
from cachemark.kit import inspection
from cachemark.machine.shared_state import Change, Impact, undisturbed
from cachemark.plans import schema
from cachemark.plans.expand import Planned, expand
from cachemark.trial.child.bench import Bench
from cachemark.trial.child.inspecting import disturbed, inspected
from cachemark.trial.child.main import _Trial
from cachemark.trial.request import TrialRequest
from support import examples
from support.stages import forgetting

from .cheating import Cheat

DUMB = "class Dumb(Exception):\n    def __str__(self):\n        raise ValueError"
RAISED = {  # what it raises: the words of its flag, or of the reason why there is no inspection
    "SystemExit(0)": ("SystemExit", ""), "KeyboardInterrupt": ("KeyboardInterrupt", ""), "Dumb": ("Dumb", ""),
    "MemoryError": ("MemoryError", ""), "torch.OutOfMemoryError": ("", "no memory"),
}  # fmt: skip


def outcome_of(raised: str, folder: Path, where: Path) -> tuple[Outcome, bool]:
    """The outcome of a method that raises when it begins, inspected, and whether the inspection came to its end."""
    body = f"def begin(self, layout, sites, memory):\n    raise {raised}" if raised else ""
    with forgetting():
        arm, _ = planned(body, folder, where)
        return inspected(arm, Bench.load(arm), measured(arm))


def planned(body: str, folder: Path, where: Path) -> tuple[Planned, tuple[str, ...]]:
    """The case of a method with this body, and the files of the plug-ins that it needs."""
    files = folder / "dot.py", Cheat(DUMB, body, "").write(where, "cheat")
    for file in files:
        plugins.load(file)
    (where / "plan.toml").write_text(examples.plan_text('"cheat"', weights=folder / "dot.safetensors"))
    cases = expand(schema.load(str(where / "plan.toml")))
    return next(one for one in cases if one.case.method == "cheat"), tuple(map(str, files))


def measured(arm: Planned) -> Outcome:
    """An outcome as if it had been timed."""
    return Outcome(arm.case, Status.OK, {"latency": [1.0]}, judgement="none was asked for", facts={"limit": 1})


def left_out(outcome: Outcome, why_not: str) -> None:
    """It has no flag, and a footnote says that and why it was not inspected."""
    assert not outcome.flags
    assert why_not in outcome.facts[INSPECTED]["left_out"]
    (note,) = outcome.facts["footnotes"]
    assert note.startswith("Not inspected: ")
    assert why_not in note


@pytest.mark.parametrize("raised", RAISED)
def test_what_was_measured_is_kept(raised: str, folder: Path, tmp_path: Path) -> None:
    flag, why_not = RAISED[raised]
    outcome, whole = outcome_of(raised, folder, tmp_path)
    assert outcome.ok
    assert not whole
    assert outcome.samples == {"latency": [1.0]}
    assert outcome.facts["limit"] == 1
    if why_not:
        left_out(outcome, why_not)
    else:
        assert [flag in said for said in outcome.flags] == [True]
        assert "left_out" not in outcome.facts[INSPECTED]


@pytest.mark.parametrize(("error", "why_not"), [(ValueError("a broken\ninstrument"), "ValueError: a broken"), (MemoryError(), "no memory")])
def test_an_error_of_our_own_is_not_its_fault(error: Exception, why_not: str, folder: Path, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def broken() -> None:
        raise error

    monkeypatch.setattr(inspection, "_alive", broken)
    outcome, whole = outcome_of("", folder, tmp_path)
    assert not whole
    left_out(outcome, why_not)
    assert "instrument" not in outcome.facts[INSPECTED]["left_out"]


def test_an_inspection_that_finds_nothing_comes_to_its_end(folder: Path, tmp_path: Path) -> None:
    outcome, whole = outcome_of("", folder, tmp_path)
    assert whole
    assert not outcome.flags
    assert "footnotes" not in outcome.facts


def test_changes_of_an_inspection_are_a_footnote_and_no_fault(folder: Path, tmp_path: Path) -> None:
    outcome, _ = outcome_of("", folder, tmp_path)
    assert disturbed(outcome, []) is outcome
    told = disturbed(outcome, [Change("TF32 in matmuls", Impact.TIMES, "False", "True")])
    assert told.ok
    assert not told.flags
    assert told.facts["footnotes"] == ["Changed while it was inspected: TF32 in matmuls (False → True). The process was ended after it, so "
                                       "that no other case is touched."]


@pytest.mark.parametrize(("begins_with", "fit", "said"), [
    ("pass", True, ""),
    ("raise torch.OutOfMemoryError", False, "Not inspected: "),
    ("raise ValueError", False, "Flagged: expected another generation"),
    ("torch.backends.cudnn.benchmark = True", False, "Changed while it was inspected: cuDNN's benchmark"),
])
def test_a_process_whose_inspection_went_wrong_serves_no_other_case(begins_with: str, fit: bool, said: str, folder: Path,
                                                                   tmp_path: Path) -> None:  # fmt: skip
    body = f"def begin(self, layout, sites, memory):\n    {begins_with}\n    super().begin(layout, sites, memory)"
    with forgetting(), undisturbed():
        arm, files = planned(body, folder, tmp_path)
        trial = _Trial(TrialRequest(plugins=files), lambda one, bench: (measured(one), {}), lambda images: None)
        outcome, _, found = trial.run(arm)
    assert found == fit, outcome
    assert outcome.ok
    assert outcome.samples == {"latency": [1.0]}
    assert CHANGED not in outcome.facts
    notes = outcome.facts.get("footnotes", ())
    assert any(note.startswith(said) for note in notes) if said else not notes
