"""The reference rows of a case, ``other_seeds`` and ``other_batch``: which seeds, which batches and how many samples they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core import seeds
from cachemark.core.spec import FORCED_SAMPLES, REFERENCE_SAMPLES
from cachemark.trial.child.bench import case_job
from support.examples import SAMPLES
from support.measuring import planned, run_case
from trial.test_measure import recorded, run_all

pytestmark = pytest.mark.usefixtures("dot")


def test_the_different_seed_reference_has_the_same_classes_and_other_seeds(folder: Path) -> None:
    cases = planned(folder)
    bench, recorder = recorded(cases)
    run_case(cases[0], bench)
    recorder.calls.clear()
    run_case(cases[1], bench)
    subset = seeds.subset("s64", 10).first(SAMPLES)
    assert [label for call in recorder.calls for label in call["labels"]] == subset.labels
    assert not {seed for call in recorder.calls for seed in call["seeds"]} & set(subset.seeds)


@pytest.mark.parametrize(("batch", "other"), [(4, [2, 2]), (1, [2, 2]), (3, [1] * 4)])
def test_the_batch_size_reference_runs_at_another_batch(batch: int, other: list[int], folder: Path) -> None:
    cases = planned(folder, batch=batch)
    bench, recorder = recorded(cases)
    bench.reference(cases[2].case, case_job(cases[2].case, bench))
    recorder.calls.clear()
    outcome, _ = run_case(cases[2], bench)
    assert [len(c["seeds"]) for c in recorder.calls] == other * 2  # free-running, then forced
    assert len(recorder.those("forced")) == len(other)
    assert len(outcome.samples["token_agreement"]) == SAMPLES


def test_reference_rows_and_the_full_cache_s_own_tokens_take_the_samples_that_a_plan_gives_them(folder: Path) -> None:
    """In any order, and the reference of the candidates is made once."""
    few = [replace(p, case=replace(p.case, evaluation={REFERENCE_SAMPLES: 3, FORCED_SAMPLES: 2})) for p in planned(folder, '"streaming"')]
    bench, recorder = recorded(few)
    found = {p.case.role: run_case(p, bench)[0] for p in (few[1], few[0], few[2], few[3])}
    observed = [c for c in recorder.those("see") if c.get("forced") is None]
    assert sum(len(c["seeds"]) for c in observed) == 3 + SAMPLES, "of the different-seed reference, which came first, then of all"
    lengths = {role: {name: len(held) for name, held in outcome.samples.items() if name in ("token_agreement", "kl", "psnr")}
               for role, outcome in found.items()}
    everything = {"token_agreement": SAMPLES, "psnr": SAMPLES}
    assert lengths == {"other_seeds": {"token_agreement": 3, "psnr": 3}, "baseline": everything | {"kl": 2},
                       "other_batch": {"token_agreement": 3, "psnr": 3, "kl": 2}, "candidate": everything | {"kl": 2}}
    whole = {outcome.case.role: outcome for outcome, _ in run_all(planned(folder, '"streaming"')).values()}
    assert found["other_batch"].samples["kl"] == pytest.approx(whole["other_batch"].samples["kl"][:2], abs=1e-6)
    assert found["candidate"].samples["kl"] == pytest.approx(whole["candidate"].samples["kl"][:2], abs=1e-6)
