"""Two classes of numerics on one machine: the same plan with vector instructions and without."""

from __future__ import annotations

from pathlib import Path

import pytest

import cachemark as cm
from cachemark.core.verdicts import REGRESSED
from cachemark.gate import baselines
from cachemark.gate.baseline_check import TOKENS
from cachemark.store.db import Store
from cachemark.workflows.check import judge
from cachemark.workflows.report import baseline_of
from support import fork_server
from support.examples import short_plan

WITHOUT = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@pytest.mark.fresh_process  # kernels are chosen when torch is imported, those of the second run by the environment
def test_another_class_has_no_false_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "short.toml"
    plan.write_text(short_plan('model = "tiny-var"\nmethods = ["window"]\nbudgets = ["1/2"]'))
    with monkeypatch.context() as usual:
        usual.setattr(fork_server, "enabled", True)
        cm.run(plan, store="here.sqlite", machine=cm.Machine(threads=1))
    with Store.open("here.sqlite") as store:
        first = store.run()
        accepted = baselines.save(store, first.id, reason="the tests")
        assert baseline_of(first, None) == accepted
    for name, value in WITHOUT.items():
        monkeypatch.setenv(name, value)
    cm.run(plan, store="here.sqlite", machine=cm.Machine(threads=1))
    with Store.open("here.sqlite") as store:
        second = store.run()
        assert not store.reused(second.id), "results of other numerics are not reused"
        assert baseline_of(second, None) is None, "a page compares within its class only"
        comparison = judge(store, second, accepted).comparison
        assert comparison is not None
        differ = [then.output_hash != now.output_hash or then.samples != now.samples
                  for then, now in zip(store.outcomes(first.id), store.outcomes(second.id), strict=True)]
    assert any(differ)
    assert comparison.with_verdict(REGRESSED) == ()
    assert {row.verdict for row in comparison.rows if row.metric == TOKENS} == {"not_compared"}
    assert {row.verdict for row in comparison.rows if row.metric in ("latency", "psnr")} == {"not_compared"}
    assert {row.verdict for row in comparison.rows if row.metric == "token_agreement"} == {"equivalent"}, "within the rounding noise"
    assert "cachemark baseline rebase" in " ".join(comparison.details())
