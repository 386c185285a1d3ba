"""History of earlier comparisons in the store: false-alarm rate, resolution of the machine, and a configuration's series."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gate_examples import CODE, ENVIRONMENT, case, ok

from cachemark.core.facts import Facts, PairFacts
from cachemark.core.result import Environment, Outcome
from cachemark.gate import nights as ledger
from cachemark.gate.comparison import AA
from cachemark.store.db import Store
from cachemark.store.rows import RunRecord, Verdict
from cachemark.workflows.run import PlanRunner
from cachemark.workflows.session import Machine
from support import stub

AA_CONFIG = f"{AA}tiny linear"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


def made(number: int = 1, change: float | None = 1.0, aa: str = "equivalent", environment: Environment = ENVIRONMENT) -> ledger.Night:
    run = RunRecord(number, "compare/demo", {"configurations": 1, "alike": "same"}, "2026", "2026", "finished", environment, CODE)
    rows = [Verdict("k", "tiny linear", "latency", "equivalent", "", 1.0, change, change)] if change else []
    return ledger.Night(run, (*rows, Verdict("k", AA_CONFIG, "latency", aa, "", 1.0, 1.0, 1.0)))


def filed(store: Store, night: ledger.Night, plan: str = "demo", state: str = "finished") -> int:
    run = store.begin_run(ledger.COMPARISON + plan, night.run.plan_json, night.run.environment, CODE)
    store.finish_run(run, state)
    store.save_verdicts(run, night.rows)
    return run


def test_nights_are_finished_comparisons_and_other_configs_compare_themselves_in_turn(store: Store) -> None:
    runs = [filed(store, made()), filed(store, made())]
    filed(store, made(), plan="other")
    filed(store, made(), state="interrupted")
    filed(store, made(environment=replace(ENVIRONMENT, machine_class="gpu")))
    store.finish_run(store.begin_run("demo", {}, ENVIRONMENT, CODE), "finished")
    assert [n.run.id for n in ledger.nights(store, "demo", ENVIRONMENT.machine_class)] == runs
    night = made(aa="regressed")
    assert (night.tally.exit_code, [r.label for r in night.tally.rows]) == (0, ["tiny linear"])
    assert night.equal_configs == {AA_CONFIG: True}
    for configs, turns in ((3, 3), (20, 4), (200, 25)):
        names = [f"configuration {number}" for number in range(configs)]
        assert {config for turn in range(turns) for config in ledger.equal_configs(names, turn)} == set(names)
        assert all(len(set(ledger.equal_configs(names, turn))) == len(ledger.equal_configs(names)) for turn in range(2 * configs))


def test_a_gate_that_alarms_for_nothing_demotes_itself_by_the_rate_of_a_night() -> None:
    for alarms, nights, advisory in ((0, 5, False), (2, 30, False), (3, 30, True), (3, 3, True)):
        verdict_list = [("improved" if number % 2 else "regressed") if number < alarms else "equivalent" for number in range(nights)]
        standing_now = ledger.standing([made(number, aa=aa) for number, aa in enumerate(verdict_list)])
        assert (standing_now.nights, standing_now.alarms, standing_now.advisory) == (nights, alarms, advisory)
        assert standing_now.low <= alarms / nights <= standing_now.high
        assert ("advisory" in str(standing_now)) is advisory

    def night_of_eight(number: int) -> ledger.Night:
        said = ["regressed" if (number, config) == (3, 2) else "equivalent" for config in range(8)]
        equal = [Verdict("k", f"{AA}configuration {config}", "latency", verdict) for config, verdict in enumerate(said)]
        failed = Verdict("k", f"{AA}configuration 1", "status", "regressed" if number == 4 else "equivalent")
        run = replace(made(number).run, plan_json={"configurations": 200, "alike": "same"})
        return ledger.Night(run, (*equal, failed))

    standing_now = ledger.standing([night_of_eight(number) for number in range(10)])
    assert (standing_now.nights, standing_now.alarms, standing_now.configs, standing_now.wrong, standing_now.family) == (10, 2, 80, 2, 200)
    assert standing_now.rate == pytest.approx(1 - (1 - 2 / 80) ** 200)
    assert standing_now.low < standing_now.rate < standing_now.high


def test_the_history_of_a_config_has_its_environments_and_nights_without_a_level_are_reported_only() -> None:
    newer = made(3, 0.9, environment=replace(ENVIRONMENT, fingerprint="new torch"))
    nights = [*(made(number, change) for number, change in enumerate((1.0, 1.1, None))), newer]
    values, environments = ledger.series(nights, "tiny linear")
    assert values == pytest.approx([0.0, math.log(1.1), math.nan, math.log(0.9)], nan_ok=True)
    assert environments == [ENVIRONMENT.fingerprint] * 3 + ["new torch"]
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.02, 60))
    nights = [made(n, float(np.exp(value))) for n, value in enumerate(walk)]
    (line,) = [line for line in ledger.history_lines(nights, "tiny linear", 0.02) if "since" in line]
    assert line.endswith(", on nights that follow no level: reported only.")


def side(run: int, number: int, side: str, seconds: float) -> Outcome:
    facts = Facts(pair=PairFacts(run=run, configuration=AA_CONFIG, number=number, side=side))
    return replace(ok(case("linear"), latency=[seconds] * 3), facts=facts)


def test_the_process_bias_of_a_machine_is_what_its_equal_pairs_have_shown_and_runs_store_it(store: Store) -> None:
    stream = np.random.default_rng(4)

    def measure(count: int, environment: Environment = ENVIRONMENT) -> None:
        run = filed(store, made(environment=environment))
        for number in range(count):
            for name in ("before", "after"):
                store.save(run, side(run, number, name, float(np.exp(0.03 * stream.normal()))))

    measure(29)
    measure(40, replace(ENVIRONMENT, machine_class="gpu"))
    assert ledger.shown_process_bias(store, ENVIRONMENT.machine_class) is None
    measure(11)
    shown = ledger.shown_process_bias(store, ENVIRONMENT.machine_class)
    assert shown.pairs == 40
    assert 0.03 <= shown.deviation < 0.045
    here = stub.Stub().environment("cpu", 1)
    earlier = filed(store, made(environment=here))
    for number in range(30):
        for name, seconds in (("before", 1.0), ("after", 1.0 + 0.01 * (number % 7))):
            store.save(earlier, side(earlier, number, name, seconds))
    shown = ledger.shown_process_bias(store, here.machine_class)
    measured = PlanRunner(stub.tiny_plan(), store, stub.Stub(), Machine("cpu", 1)).measure()
    assert shown.pairs == 30
    assert all(outcome.facts.process_bias == shown for outcome in store.outcomes(measured.run_id))


def test_what_a_machine_can_see() -> None:
    stream = np.random.default_rng(0)

    def pairs(sd: float, count: int = 40) -> dict[tuple[int, str], list[float]]:
        return {(1, AA_CONFIG): list(stream.normal(0, sd, count))}

    few, quiet, of_gpu, loud, wild = (ledger.least_effect(pairs(*given), 5, device) for given, device in (
        ((0.0, 29), "cpu"), ((0.001,), "cpu"), ((0.001,), "cuda"), ((0.2,), "cpu"), ((9,), "cpu")))
    assert (few[0], quiet[0], "can see ≥ 10 %" in quiet[1], of_gpu[0], wild[0]) == (0.10, 0.10, True, 0.02, 0.5)
    assert loud[0] > 0.12
    stream = np.random.default_rng(6)
    once = stream.normal(0, 0.014, 8)
    same = {(run, f"{AA}{config}"): list(stream.normal(once[config], 0.002, 6)) for run in range(20) for config in range(8)}
    anew = {key: list(stream.normal(stream.normal(0, once.std()), 0.002, 6)) for key in same}
    of_one, of_many = (ledger.least_effect(equal, 200, "cuda")[0] for equal in (same, anew))
    assert of_one > 1.4 * of_many
    few = {key: same[key] for key in same if key[0] == 0}
    assert of_one == pytest.approx(ledger.least_effect(few, 200, "cuda")[0], rel=0.1), "the first night said as much"
