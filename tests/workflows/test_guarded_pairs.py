"""Pairs on a monitored device, and the self-test of the gate. Driver and interpreter are stubs; what is between them is real."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import cachemark as cm
from cachemark.core.errors import Infrastructure
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.verdicts import REGRESSED
from cachemark.gate import baselines
from cachemark.gate.baseline_check import TOKENS
from cachemark.machine.environment import environment
from cachemark.machine.lease import lease
from cachemark.machine.monitor import Watch
from cachemark.plans.planned import Prepared
from cachemark.store.db import Store
from cachemark.trial.executors.local import Executor, local
from cachemark.trial.measurement import Measurement
from cachemark.trial.request import PROTOCOL, TrialRequest
from cachemark.workflows import bisect, prove
from cachemark.workflows.check import judge
from cachemark.workflows.compare import PairedComparison, Terms, compare as measure_pairs
from cachemark.workflows.report import baseline_of
from cachemark.workflows.session import Machine
from support import fork_server, stub
from support.examples import short_plan
from support.fake_nvml import Card, FakeNvml, lose
from support.repositories import git
from support.stages import Stage

pytestmark = pytest.mark.usefixtures("own_leases")
CHILD = """#!{python}
import json, sys
from multiprocessing.connection import Connection
if "-c" in sys.argv:
    print(json.dumps({introduction}))
    sys.exit()
request, parent = json.loads(Connection(0, writable=False).recv_bytes()), Connection(1, readable=False)
for _ in request["cases"]:
    parent.send_bytes(b'{{"start": ""}}')
    parent.send_bytes(json.dumps({{"measurement": {measured}}}).encode())
"""


@dataclass(frozen=True)
class Watched(Machine):
    """Cases of a CPU on the leased and watched devices of a driver. ``held``: the device that is asked for, where it is another."""

    driver: Any = None
    held: str = "cuda"

    @contextmanager
    def places(self, store: Store | None = None) -> Iterator[Executor]:
        with local(self.held, 1, names=self.gpus, clock=self.clock, nvml=self.driver) as places:
            yield places


@dataclass
class Script:
    """Events on the devices while the n-th case (from 1) runs."""

    events: dict[int, Callable[[Card], None]] = field(default_factory=dict)
    always: Callable[[Card], None] | None = None
    ran: list[str] = field(default_factory=list)


@pytest.fixture
def script(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> Script:
    made, begin, end = Script(), Watch.begin, Watch.end

    def begun(watch: Watch) -> None:
        made.ran.append(watch.gpu.uuid)
        if happens := made.events.get(len(made.ran), made.always):
            happens(next(card for card in cards if card.uuid == watch.gpu.uuid))
        begin(watch)

    def ended(watch: Watch) -> Any:
        readings = end(watch)
        for card in cards:
            card.reasons, card.pids = 0, set()
        return readings

    monkeypatch.setattr(Watch, "begin", begun)
    monkeypatch.setattr(Watch, "end", ended)
    return made


@pytest.fixture
def python(tmp_path: Path) -> str:
    measured = Measurement(Status.OK, {"latency": [1.0] * 3}, "a side", output_hash="cafe", facts=Facts(kernel="sdpa")).to_json()
    introduction = {"protocol": PROTOCOL, "environment": environment("cpu", 1).to_json(), "code": {"hash": "abc"}}
    file = tmp_path / "python"
    file.write_text(CHILD.format(python=sys.executable, introduction=introduction, measured=measured))
    file.chmod(0o700)
    return str(file)


def compare(unrun: Stage, python: str, nvml: FakeNvml, **machine: Any) -> PairedComparison:
    return measure_pairs(unrun.plan, unrun.store, environments=(python, python), only=("calm 1/2",), plugins=[unrun.plugin], samples=0,
                         terms=Terms(delta=0.5, aa=False), machine=Watched("cpu", 1, driver=nvml, **machine))


def pairs(unrun: Stage) -> list[tuple[int, int, tuple[str, str]]]:
    with Store.open(unrun.store, create=False, read_only=True) as store:
        stored_pairs = [(o.facts.pair, o.facts.device.uuid) for o in store.outcomes(1)]
    sides = {side: {pair.number: (pair.redone, uuid) for pair, uuid in stored_pairs if pair.side == side} for side in ("before", "after")}
    return [(number, redone, (uuid, sides["after"][number][1])) for number, (redone, uuid) in sorted(sides["before"].items())]


def throttles(card: Card) -> None:
    card.reasons = 0x8


def test_a_disturbed_pair_is_measured_again_and_clean_ones_are_judged(unrun: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.events = {3: throttles, 8: lambda card: card.pids.add(1)}
    comparison = compare(unrun, python, nvml)
    assert (comparison.exit_code, {row.verdict for row in comparison.tally.rows}) == (0, {"equivalent"})
    again = {number for number, redone, _ in pairs(unrun) if redone}
    assert again == {2, 3}, "the third case belongs to the second pair, the eighth to the third, which was the fourth to run"
    assert len(script.ran) == 2 * (6 + 2), "both sides of a pair, each time"
    assert {device for _, _, devices in pairs(unrun) for device in devices} == {"GPU-aaaa"}


def test_a_device_that_never_comes_to_rest_is_to_blame(unrun: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.always = throttles
    comparison = compare(unrun, python, nvml)
    assert (comparison.exit_code, [row.verdict for row in comparison.tally.rows]) == (5, ["not_compared"])
    assert pairs(unrun) == [(1, 3, ("GPU-aaaa", "GPU-aaaa"))]


def test_another_device_takes_the_pair_and_both_sides_share_one(unrun: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.events = {2: throttles}
    assert compare(unrun, python, nvml, gpus=("all",)).exit_code == 0
    assert script.ran == ["GPU-aaaa"] * 2 + ["GPU-bbbb"] * 12
    assert all(before == after for _, _, (before, after) in pairs(unrun))


def test_a_lost_device_ends_the_comparison(unrun: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.events = {4: lose}
    with pytest.raises(Infrastructure, match=r"The comparison ends with its device\. The device was lost: GPU-aaaa"):
        compare(unrun, python, nvml)
    assert unrun.states() == ["failed"]
    assert [number for number, _, _ in pairs(unrun)] == [1], "what was measured before is kept"


def test_a_device_that_is_held_is_left_alone(unrun: Stage, python: str, nvml: FakeNvml, script: Script, tmp_path: Path) -> None:
    (repository := tmp_path / "repository").mkdir()
    git(repository, "init", "-q")
    machine, plugins = Watched("cpu", 1, ("GPU-aaaa",), driver=nvml), [unrun.plugin]
    with lease("GPU-aaaa"):
        for command in (lambda: compare(unrun, python, nvml, gpus=("GPU-aaaa",)), lambda: prove.self_test(machine),
                        lambda: bisect.bisect(unrun.plan, "calm 1/2", "a", "b", repository=repository, machine=machine, plugins=plugins)):
            with pytest.raises(Infrastructure, match="Held by another run: GPU-aaaa"):
                command()
        assert compare(unrun, python, nvml).exit_code == 0
    assert set(script.ran) == {"GPU-bbbb"}


def test_clocks_are_held_while_pairs_are_measured(unrun: Stage, python: str, nvml: FakeNvml, cards: list[Card], script: Script) -> None:
    clocks: list[int] = []
    script.always = lambda card: clocks.append(card.locked)
    assert compare(unrun, python, nvml, clock=1410).exit_code == 0
    assert (set(clocks), cards[0].locked) == ({1410}, 0)


@pytest.mark.parametrize(("device", "sees", "passed"), [
    ("cpu", 1.0, [True] * 3), ("cuda", 1.0, [True] * 3), ("cuda", 0.0, [True, False, True])])
def test_the_gate_proves_itself(device: str, sees: float, passed: list[bool], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case takes a second plus its method's delay, as far as the clock ``sees`` it."""
    ran = set[tuple[str, str]]()

    def answer(planned: Prepared, request: TrialRequest) -> Outcome:
        ran.add((planned.case.device_class, request.gpu))
        latency = 1.0 + sees * planned.case.parameters.get("wait", 0.0)
        return Outcome(planned.case, Status.OK, {"latency": [latency] * 3}, "a side", output_hash="cafe")

    stub.answering(monkeypatch, answer)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [proof.passed for proof in prove.self_test(Watched(device, 1, driver=nvml, held=device))] == passed
    assert ran == {(device, "GPU-aaaa" if device == "cuda" else "")}


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
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    cm.run(plan, store="here.sqlite", machine=cm.Machine(threads=1))
    with Store.open("here.sqlite") as store:
        second = store.run()
        assert not store.reused(second.id), "results of other numerics are not reused"
        assert baseline_of(second, None) is None, "a page compares within its class only"
        comparison = judge(store, second, accepted).comparison
        assert any((then.output_hash, then.samples) != (now.output_hash, now.samples)
                   for then, now in zip(store.outcomes(first.id), store.outcomes(second.id), strict=True))
    assert comparison.with_verdict(REGRESSED) == ()
    for metric, verdict in ((TOKENS, "not_compared"), ("latency", "not_compared"), ("token_agreement", "equivalent")):
        assert {row.verdict for row in comparison.rows if row.metric == metric} == {verdict}, metric  # within the rounding noise
    assert "cachemark baseline rebase" in " ".join(comparison.details())
