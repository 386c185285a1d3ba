"""Pairs on a monitored device: repetition of disturbed pairs, leases, clocks and lost devices.

Driver and interpreter are stubs; everything between them is real.
"""

import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import Infrastructure
from cachemark.core.facts import Facts
from cachemark.core.result import Status
from cachemark.machine.environment import environment
from cachemark.machine.lease import lease
from cachemark.machine.monitor import Watch
from cachemark.store.db import Store
from cachemark.trial.executors.local import Executor, local
from cachemark.trial.measurement import Measurement
from cachemark.trial.request import PROTOCOL
from cachemark.workflows import bisect, prove
from cachemark.workflows.compare import PairedComparison, Terms
from cachemark.workflows.compare import compare as measure_pairs
from cachemark.workflows.session import Machine
from support.fake_nvml import Card, FakeNvml, lose
from support.repositories import git
from support.stages import Stage, stage

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
    """Cases of a CPU on the leased and watched devices of a driver."""

    driver: Any = None

    @contextmanager
    def places(self) -> Iterator[Executor]:
        with local("cuda", 1, names=self.gpus, clock=self.clock, nvml=self.driver) as places:
            yield places


@dataclass
class Script:
    """Events on the devices while the n-th case (from 1) runs."""

    cards: list[Card]
    events: dict[int, Callable[[Card], None]] = field(default_factory=dict)
    always: Callable[[Card], None] | None = None
    ran: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin, end = Watch.begin, Watch.end

        def begun(watch: Watch) -> None:
            self.ran.append(watch.gpu.uuid)
            if happens := self.events.get(len(self.ran), self.always):
                happens(next(card for card in self.cards if card.uuid == watch.gpu.uuid))
            begin(watch)

        def ended(watch: Watch) -> Any:
            readings = end(watch)
            for card in self.cards:
                card.reasons, card.pids = 0, set()
            return readings

        monkeypatch.setattr(Watch, "begin", begun)
        monkeypatch.setattr(Watch, "end", ended)


@pytest.fixture
def script(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script(cards)
    made.install(monkeypatch)
    return made


@pytest.fixture
def at(tmp_path: Path) -> Stage:
    return stage(tmp_path / "stage")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter whose trials succeed at once."""
    measured = Measurement(Status.OK, {"latency": [1.0] * 3}, "a side", output_hash="cafe", facts=Facts(kernel="sdpa")).to_json()
    introduction = {"protocol": PROTOCOL, "environment": environment("cpu", 1).to_json(), "code": {"hash": "abc"}}
    file = tmp_path / "python"
    file.write_text(CHILD.format(python=sys.executable, introduction=introduction, measured=measured))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def compare(at: Stage, python: str, nvml: FakeNvml, **machine: Any) -> PairedComparison:
    terms = Terms(delta=0.5, aa=False)
    return measure_pairs(at.plan, at.store, environments=(python, python), only=("calm 1/2",), plugins=[at.plugin], samples=0,
                             terms=terms, machine=Watched("cpu", 1, driver=nvml, **machine))


def pairs(at: Stage) -> list[tuple[int, int, tuple[str, str]]]:
    """Return number, repetitions and devices of each stored pair."""
    with Store.open(at.store, create=False, read_only=True) as store:
        stored_pairs = [(o.facts.pair, o.facts.device.uuid) for o in store.outcomes(1)]
    sides = {side: {pair.number: (pair.redone, uuid) for pair, uuid in stored_pairs if pair.side == side} for side in ("before", "after")}
    return [(number, redone, (uuid, sides["after"][number][1])) for number, (redone, uuid) in sorted(sides["before"].items())]


def throttles(card: Card) -> None:
    card.reasons = 0x8


def intrudes(card: Card) -> None:
    card.pids = {1}


def test_a_pair_that_the_device_disturbed_is_measured_again_and_the_verdict_stands_on_clean_ones(
    at: Stage, python: str, nvml: FakeNvml, script: Script,
) -> None:
    script.events = {3: throttles, 8: intrudes}
    comparison = compare(at, python, nvml)
    assert (comparison.exit_code, {row.verdict for row in comparison.tally.rows}) == (0, {"equivalent"})
    again = {number for number, redone, _ in pairs(at) if redone}
    assert again == {2, 3}, "the third case belongs to the second pair, the eighth to the third, which was the fourth to run"
    assert len(script.ran) == 2 * (6 + 2), "both sides of a pair, each time"
    assert {device for _, _, devices in pairs(at) for device in devices} == {"GPU-aaaa"}


def test_a_device_that_never_comes_to_rest_is_to_blame(at: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.always = throttles
    comparison = compare(at, python, nvml)
    (row,) = comparison.tally.rows
    assert (comparison.exit_code, row.verdict) == (5, "not_compared")
    assert pairs(at) == [(1, 3, ("GPU-aaaa", "GPU-aaaa"))]


def test_of_several_devices_another_takes_the_pair_and_both_sides_share_one(
    at: Stage, python: str, nvml: FakeNvml, script: Script,
) -> None:
    script.events = {2: throttles}
    assert compare(at, python, nvml, gpus=("all",)).exit_code == 0
    assert script.ran == ["GPU-aaaa"] * 2 + ["GPU-bbbb"] * 12
    assert all(before == after for _, _, (before, after) in pairs(at))


def test_a_lost_device_ends_the_comparison(at: Stage, python: str, nvml: FakeNvml, script: Script) -> None:
    script.events = {4: lose}
    with pytest.raises(Infrastructure, match=r"The comparison ends with its device\. The device was lost: GPU-aaaa"):
        compare(at, python, nvml)
    with Store.open(at.store, create=False, read_only=True) as store:
        assert store.run(1).state == "failed"
    assert [number for number, _, _ in pairs(at)] == [1], "what was measured before is kept"


def test_a_device_that_somebody_else_holds_is_left_alone(
    at: Stage, python: str, nvml: FakeNvml, script: Script, tmp_path: Path,
) -> None:
    (repository := tmp_path / "repository").mkdir()
    git(repository, "init", "-q")
    machine = Watched("cpu", 1, ("GPU-aaaa",), driver=nvml)
    with lease("GPU-aaaa"):
        for command in (
            lambda: compare(at, python, nvml, gpus=("GPU-aaaa",)), lambda: prove.self_test(machine),
            lambda: bisect.bisect(at.plan, "calm 1/2", "a", "b", repository=repository, machine=machine, plugins=[at.plugin]),
        ):
            with pytest.raises(Infrastructure, match="Held by another run: GPU-aaaa"):
                command()
        assert compare(at, python, nvml).exit_code == 0
    assert set(script.ran) == {"GPU-bbbb"}


def test_clocks_are_held_while_pairs_are_measured(at: Stage, python: str, nvml: FakeNvml, cards: list[Card], script: Script) -> None:
    clocks: list[int] = []
    script.always = lambda card: clocks.append(card.locked)
    assert compare(at, python, nvml, clock=1410).exit_code == 0
    assert (set(clocks), cards[0].locked) == ({1410}, 0)
