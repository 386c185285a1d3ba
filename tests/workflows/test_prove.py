"""The self-test of the gate: its device, its clock, and a clock that misses the slow-down."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cachemark as cm
from cachemark.core.result import Outcome, Status
from cachemark.core.verdicts import REGRESSED
from cachemark.gate import baselines
from cachemark.gate.baseline_check import TOKENS
from cachemark.plans.planned import Prepared
from cachemark.store.db import Store
from cachemark.trial.executors import local as executor
from cachemark.trial.executors.local import Executor, local
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import Finished
from cachemark.workflows.check import judge
from cachemark.workflows.prove import SELF_TEST, SLOWER, self_test
from cachemark.workflows.report import baseline_of
from cachemark.workflows.session import Machine
from support import fork_server
from support.examples import short_plan
from support.fake_nvml import FakeNvml

pytestmark = pytest.mark.usefixtures("own_leases")


@dataclass(frozen=True)
class Watched(Machine):
    """A machine with the devices of a stub driver."""

    driver: Any = None

    @contextmanager
    def places(self, store: Store | None = None) -> Iterator[Executor]:
        with local(self.device, 1, nvml=self.driver) as places:
            yield places


class Trials:
    """Worker processes that take a second plus the method's delay, as far as the clock ``sees`` it."""

    def __init__(self, sees: float = 1.0) -> None:
        self.sees, self.ran = sees, set[tuple[str, str]]()

    def __call__(self, planned: list[Prepared], request: TrialRequest, started: Any, **_: Any) -> Iterator[Finished]:
        for item in planned:
            self.ran.add((item.case.device_class, request.gpu))
            latency = 1.0 + self.sees * item.case.parameters.get("wait", 0.0)
            yield Finished(Outcome(item.case, Status.OK, {"latency": [latency] * 3}, "a side", output_hash="cafe"), {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_gate_is_proved_on_the_device_where_it_judges(device: str, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials()
    monkeypatch.setattr(executor, "run_trials", trials)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    proofs = self_test(Watched(device, 1, driver=nvml))
    assert [proof.passed for proof in proofs] == [True] * 3
    assert trials.ran == {(device, "GPU-aaaa" if device == "cuda" else "")}


def test_a_clock_that_does_not_see_the_device_wait_proves_nothing(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "run_trials", Trials(sees=0.0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [proof.passed for proof in self_test(Watched("cuda", 1, driver=nvml))] == [True, False, True]


def test_on_a_gpu_the_device_waits_and_not_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock without synchronization would miss the delay."""
    slept: list[int] = []
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda other: 50.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    scope: dict[str, Any] = {"__name__": "delayed"}
    exec((SELF_TEST / "delayed.py.txt").read_text(encoding="utf-8").partition("@cm.method")[0], scope)
    begun = time.perf_counter()
    scope["wait"](SLOWER * 1000, torch.device("cuda"))
    assert time.perf_counter() - begun < 100, "the host goes on"
    assert slept[-1] == 600 * 2 * 10**9, "10^8 cycles in 50 ms"
    scope["wait"](0.0, torch.device("cuda"))
    assert len(slept) == 3, "A/A tests do not wait"
    scope["wait"](0.01, torch.device("cpu"))
    assert time.perf_counter() - begun >= 0.01


WITHOUT = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@pytest.mark.slow
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
