"""Devices as the driver shows them: what slows them, who else is on them, and what becomes of the cases."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest

from cachemark.core.facts import DeviceReadings
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.machine import gpu as device, monitor as watch, timer
from cachemark.machine.environment import environment
from cachemark.machine.monitor import Watch, strangers
from cachemark.models.protocol import Request
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.executors import local as executor
from cachemark.trial.executors.local import Local, Place, local
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import Finished, always, run_trials
from support.examples import short_plan
from support.fake_nvml import Card, FakeNvml, lose

pytestmark = pytest.mark.usefixtures("own_leases")
EVENTS, OLDER = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.fixture
def watching(nvml: FakeNvml) -> Watch:
    return Watch(device.gpus(nvml)[0], locked=1410, own=frozenset({7}))


def ends(watching: Watch, card: Card, *, spoil: Any = lambda: None) -> tuple[DeviceReadings, watch.Disturbance | None]:
    card.pids, card.sm_mhz = {7}, 1410
    watching.begin()
    spoil()
    watching.read()
    return watching.end()


def test_a_quiet_case_with_its_own_processes_stands_and_says_what_was_seen(watching: Watch, cards: list[Card]) -> None:
    facts, spoilt = ends(watching, cards[0])
    assert spoilt is None
    assert facts.to_json() == {"uuid": "GPU-aaaa", "readings": 3, "sm_mhz": [1410] * 3, "celsius": [40] * 3, "watts": [300] * 3,
                     "joules": 1.0, "slowed_by": [], "locked_mhz": 1410}
    sleeps = "import subprocess as s; s.Popen(['sleep', '60']).wait()"
    with subprocess.Popen([sys.executable, "-c", sleeps], start_new_session=True) as child:
        try:
            watching.child = child.pid
            while len(family := watch.family(child.pid)) < 2:
                pass
            cards[0].pids = set(family)
            watching.begin()
            assert watching.end()[1] is None
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.parametrize(("failing", "unseen"), [
    ({"nvmlDeviceGetComputeRunningProcesses": pynvml.NVML_ERROR_NO_PERMISSION}, ["other processes"]),
    ({EVENTS: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}, []),  # a driver before 535 has the older name
    ({EVENTS: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, OLDER: pynvml.NVML_ERROR_NOT_SUPPORTED}, ["clock reductions"]),
])
def test_what_the_driver_does_not_show_is_stated(failing: dict[str, int], unseen: list[str], watching: Watch, cards: list[Card]) -> None:
    cards[0].failing, cards[0].reasons = failing, device.HW_THERMAL
    facts, spoilt = ends(watching, cards[0])
    assert (facts.unseen or []) == unseen
    assert (spoilt is None) == ("clock reductions" in unseen), "where it can be seen it spoils the case"
    assert environment("cuda", 2, watching.gpu).facts.get("unseen", []) == unseen


def test_an_answer_nobody_expects_is_told_and_does_not_end_the_reading(nvml: FakeNvml, cards: list[Card]) -> None:
    query = "nvmlDeviceGetTemperature"
    with Watch(device.gpus(nvml)[0], period=0.001) as watching:
        watching.begin()
        for failing in ({query: pynvml.NVML_ERROR_UNKNOWN}, {}):
            cards[0].failing = failing
            before = cards[0].asked.count(query)
            while cards[0].asked.count(query) < before + 5:
                pass
        facts, disturbance = watching.end()
        watching.begin()
        assert watching.end()[0].unread is None, "of the case before"
    assert (disturbance, facts.celsius, facts.unread.errors) == (None, [40, 40, 40], [f"{query}: Unknown Error"])
    assert (facts.readings >= 5, facts.unread.times >= 1) == (True, True)


def slowed(mhz: int, busy: int) -> Callable[[Watch, Card], None]:
    def slow(watching: Watch, card: Card) -> None:
        card.sm_mhz, card.busy = mhz, busy
        watching.read()

    return slow


@pytest.mark.parametrize(("event", "locked", "status", "words"), [
    (lambda _, card: setattr(card, "reasons", 0x4), 1410, None, ""),  # the power cap
    *((lambda _, card, bits=bits: setattr(card, "reasons", bits), 1410, Status.THROTTLED, words) for bits, words in
      ((0x8, "hardware slowdown"), (0x20, "software thermal"), (0x40, "hardware thermal"), (0x80, "power brake"))),
    (slowed(1338, 100), 1410, Status.THROTTLED, "1338 MHz"), (slowed(1340, 100), 1410, None, ""),  # 0.95 of 1410 MHz are 1339.5
    (slowed(345, 10), 1410, None, ""), (slowed(345, 100), 0, None, ""),  # idle, or not locked
    (lambda _, card: card.pids.add(1), 1410, Status.CONTENDED, "Other processes computed on the device: 1."),
    (lambda _, card: lose(card), 1410, Status.ERROR, "GPU-aaaa"),
])  # fmt: skip
def test_what_disturbs_a_case(event: Any, locked: int, status: Status | None, words: str, watching: Watch, cards: list[Card]) -> None:
    watching.locked = locked
    facts, spoilt = ends(watching, cards[0], spoil=lambda: event(watching, cards[0]))
    assert (spoilt and spoilt.status) == status
    assert words in (spoilt.reason if spoilt else "")
    assert bool(facts.slowed_by) == bool(cards[0].reasons)


@pytest.mark.parametrize(("states", "slowed"), [
    ([(1, 0), (0x8, 3), (0, 100), (0, 100)], False), ([(0, 100), (0x8, 100), (0, 100)], False), ([(0x8, 100), (0x8, 100)], True),
    ([(0x40, 3), (0, 100)], False), ([(0, 100), (0x80, 100), (0, 100)], True), ([(0x20, 20), (0, 30)], True), ([(0x8, 10), (0, 30)], False),
    ([(0x8, None), (0x8, None)], True)])
def test_a_slowdown_counts_under_load(states: list[tuple[int, int | None]], slowed: bool) -> None:
    """NVML's bit of a hardware slowdown is also set while the clock changes. States are reasons and load in percent."""
    readings = [device.Reading(1410, 40, 300.0, None, busy, reasons, None) for reasons, busy in states]
    assert bool(watch._slowed_under_load(readings)) is slowed


class Trials:
    """In place of real ones: a case ends well, or spoilt as often as ``bad`` says for its method or its device."""

    def __init__(self, **bad: int) -> None:
        self.bad, self.ran = Counter(bad), list[tuple[str, str]]()

    def __call__(self, group: list[Prepared], request: TrialRequest, started: Any, *, admit: Any, **_: Any) -> Iterator[Finished]:
        for p in group:
            if reason := admit(p):
                yield Finished(Outcome(p.case, Status.NOT_REACHED, log=reason), {})
                continue
            started(p)
            self.ran.append((p.case.method, request.gpu))
            cause = p.case.method if self.bad[p.case.method] else request.gpu.replace("-", "_")
            if self.bad[cause] > 0:
                self.bad[cause] -= 1
                yield Finished(Outcome(p.case, Status.THROTTLED, log="too hot"), {}, invalidated=True, lost=cause.startswith("lost"))
            else:
                yield Finished(Outcome(p.case, Status.OK, {"latency": [1.0]}, "random"), {})


def ran(monkeypatch: pytest.MonkeyPatch, trials: Any, places: list[Place], *groups: str) -> dict[str, Outcome]:
    monkeypatch.setattr(executor, "run_trials", trials)
    case, request = Case("m", "random:0", (4, 4), "c", Sampling(), "full", device_class="cuda"), Request("cuda")
    wanted = [[Prepared(replace(case, method=name), request) for name in group.split()] for group in groups]
    listed = list(Local(places).run(wanted, TrialRequest(1.0, 1), lambda p: None, always))
    assert len(listed) == sum(map(len, wanted)), "each case ends exactly once"
    return {f.outcome.case.method: f.outcome for f in listed}


def on(nvml: FakeNvml, *numbers: int) -> list[Place]:
    return [Place((), Watch(device.gpus(nvml)[n])) for n in numbers]


@pytest.mark.parametrize(("bad", "devices", "groups", "bad_cases", "attempts"), [
    ({"b": 2}, (0,), ("a b c",), "", 5),  # measured again
    ({"GPU_aaaa": 3}, (0,), ("a b", "c d e"), "abc", 3),  # three rejects quarantine a device
    ({"a": 1000}, (0, 1), ("a",), "a", 1 + executor.REDOS),
    ({"lost": 1000}, (0,), ("lost b",), ("lost",), 1),  # a lost device gets nothing more
])  # fmt: skip
def test_a_spoilt_case_is_measured_again_while_a_device_is_left(
    bad: Any, devices: Any, groups: Any, bad_cases: Any, attempts: int, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(**bad)
    outcomes = ran(monkeypatch, trials, on(nvml, *devices), *groups)
    left = Status.OK if not bad_cases else Status.NOT_REACHED
    assert {name: o.status for name, o in outcomes.items()} == {name: Status.THROTTLED if name in bad_cases else left for name in outcomes}
    assert all("No device was left" in o.log for o in outcomes.values() if o.status is Status.NOT_REACHED)
    assert len(trials.ran) == attempts


def test_cards_work_on_their_node_and_tell_how_many_were_busy(nvml: FakeNvml, cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    cards.extend([Card("GPU-cccc", cpus=(4, 5, 6, 7)), Card("GPU-dddd")])
    cards[0].cpus = cards[1].cpus = (0, 1, 2, 3)
    nvml.cards = cards

    def pinned(threads: int, *names: str) -> list[tuple[int, ...]]:
        with local("cuda", threads, names=names, nvml=nvml) as places:
            return [place.cpus for place in places.places]

    assert pinned(2, "all") == [(0, 1), (2, 3), (4, 5, 6, 7), ()]
    assert pinned(3, "all") == [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7), ()], "threads do not queue for fewer processors"
    assert pinned(2, "1") == [(0, 1, 2, 3)]
    both = threading.Barrier(2, timeout=60)

    def trial(group: list[Prepared], *_: Any, **__: Any) -> Iterator[Finished]:
        for p in group:
            wait = both.wait if p.case.method in "ab" else lambda: None
            wait()
            yield Finished(Outcome(p.case, Status.OK, {"latency": [1.0]}, "random"), {})
            wait()  # until the other has been recorded too

    ended = ran(monkeypatch, trial, on(nvml, 0, 1), "a", "b")
    assert [ended[name].facts.busy_places for name in "ab"] == [[2, 2], [2, 2]]
    assert ran(monkeypatch, trial, on(nvml, 0, 1), "c")["c"].facts.busy_places == [1, 2]
    assert ran(monkeypatch, trial, on(nvml, 0), "c")["c"].facts.busy_places is None


def test_an_error_in_one_lane_ends_the_run(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="no more processes"):
        ran(monkeypatch, Mock(side_effect=OSError("no more processes")), on(nvml, 0, 1), *"abcd")


def test_a_real_trial_is_watched_pinned_and_waits_for_a_free_device(nvml: FakeNvml, cards: list[Card], tmp_path: Path) -> None:
    """The device is foreign at first, free then: the first case is contended before anything starts, the next one runs."""
    (tmp_path / "p.toml").write_text(short_plan('model = "tiny-llamagen"\nmethods = ["window"]'))
    both = [p for p in expand(plans.load(str(tmp_path / "p.toml"))) if p.case.role in ("baseline", "candidate")]
    short = [Prepared(p.case, p.request, unsupported_reason="not asked") for p in both]  # ends at once, after the model is loaded
    cards[0].pids = {1}
    watching = Watch(device.gpus(nvml)[0])
    cpu, ended = min(os.sched_getaffinity(0)), list[Finished]()
    for finished in run_trials(short, TrialRequest(60.0, 1, cpus=(cpu,)), lambda p: None, watch=watching):
        ended.append(finished)
        cards[0].pids = set()
    assert [(f.outcome.status, f.invalidated) for f in ended] == [(Status.CONTENDED, True), (Status.UNSUPPORTED, False)]
    assert ended[0].outcome.log == "The device was not free: process 1 computes on it."
    facts = ended[1].outcome.facts
    assert (facts.device.uuid, facts.cpus, facts.threads) == ("GPU-aaaa", [cpu], 1)


def test_the_clock_keeps_watched_tokens_from_its_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(start=100)  # the clock advances by one second whenever it is read
    monkeypatch.setattr(timer, "perf_counter_ns", lambda: next(ticks) * 10**9)
    host = timer.clock("cpu", [1, 3])
    for _ in range(2):
        host.start()
        for index in range(4):
            host.mark(index)  # the clock is read for watched tokens alone
        assert (host.stop(), host.marks()) == (3.0, {1: 1.0, 3: 2.0})
    host.start()
    host.mark(3)
    assert host.marks() == {3: 1.0}


@pytest.mark.parametrize(("seen", "own", "foreign"), [
    ({7}, {7}, set()), ({7, 8}, {7}, {8}), ({9001}, {7}, set()), ({9001, 9002}, {7}, {9002}), ({8}, {7}, {8}), ({9001}, set(), {9001})])
def test_numbers_of_another_namespace_are_forgiven_once(seen: set[int], own: set[int], foreign: set[int]) -> None:
    """Numbers from 9000 on are of no process here, as in a container whose driver counts with the host."""
    assert strangers(frozenset(seen), frozenset(own), lambda pid: pid < 9000) == foreign
