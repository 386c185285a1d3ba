"""One accepted baseline gives way to another: when, by which way, and for how long it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gate_examples import CODE, ENVIRONMENT, exchange, plan

from cachemark.core.errors import BadBaseline, NothingMeasured
from cachemark.core.result import Environment
from cachemark.gate import baselines
from cachemark.store.db import Store

NEWER = replace(ENVIRONMENT, fingerprint="torch 2.7 / 4 threads")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("store") / "results.db") as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path, store: Store) -> Path:
    baselines.save(store, measured(store), tmp_path, reason="first", days=30)
    return tmp_path


def measured(store: Store, environment: Environment = ENVIRONMENT, name: str = "demo") -> int:
    run = store.begin_run(name, {}, environment, CODE)
    for outcome in plan():
        store.save(run, outcome)
    store.finish_run(run, "finished")
    return run


def test_promotion_replaces_and_says_what_and_why(store: Store, root: Path) -> None:
    before = baselines.load(root / "ci-cpu" / "demo.json")
    run = measured(store)
    held = baselines.load(baselines.promote(store, run, root, reason="faster attention"))
    assert (held.meta["run"], held.meta["reason"], held.meta["series"]) == (run, "faster attention", 1)
    assert held.meta["replaces"]["digest"] == before.digest
    assert held.meta["replaces"]["reason"] == "first"
    assert held.meta["replaces"]["fingerprint"] == ENVIRONMENT.fingerprint


def test_an_upgrade_begins_a_new_series(store: Store, root: Path) -> None:
    run = measured(store, NEWER)
    with pytest.raises(BadBaseline, match=r"other numerics.*baseline rebase"):
        baselines.promote(store, run, root, reason="new torch")
    held = baselines.load(baselines.promote(store, run, root, reason="new torch", upgraded=True))
    assert (held.meta["series"], held.meta["replaces"].get("series", 1)) == (2, 1)
    assert [item.series for item in baselines.list_(root)] == [2]
    again = baselines.load(baselines.promote(store, measured(store, NEWER), root, reason="and faster"))
    assert again.meta["series"] == 2


def test_a_rebase_without_an_upgrade_would_hide_a_regression(store: Store, root: Path) -> None:
    with pytest.raises(BadBaseline, match="nothing was upgraded"):
        baselines.promote(store, measured(store), root, reason="it is slower now", upgraded=True)


@pytest.mark.parametrize("upgraded", [False, True])
def test_neither_goes_without_a_reason_a_baseline_and_the_same_plan(upgraded: bool, store: Store, root: Path, tmp_path: Path) -> None:
    run = measured(store, NEWER if upgraded else ENVIRONMENT)
    with pytest.raises(BadBaseline, match="--reason is required"):
        baselines.promote(store, run, root, reason="  ", upgraded=upgraded)
    with pytest.raises(BadBaseline, match="There is no baseline"):
        baselines.promote(store, run, tmp_path / "elsewhere", reason="r", upgraded=upgraded)
    other = measured(store, NEWER if upgraded else ENVIRONMENT, "another")
    with pytest.raises(BadBaseline, match="is of plan 'demo', run"):
        baselines.promote(store, other, root, "demo", reason="r", upgraded=upgraded)
    assert baselines.load(root / "ci-cpu" / "demo.json").meta["reason"] == "first"


def test_an_expired_baseline_judges_nothing(store: Store, root: Path) -> None:
    held = baselines.load(root / "ci-cpu" / "demo.json")
    assert held.meta["expires"] == (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
    assert baselines.list_(root)[0].expires == held.meta["expires"]
    baselines.refuse_expired(held)
    baselines.refuse_expired(held, datetime.now(UTC) + timedelta(days=28))
    with pytest.raises(NothingMeasured, match="expired on"):
        baselines.refuse_expired(held, datetime.now(UTC) + timedelta(days=31))
    baselines.refuse_expired(exchange(plan()))
    with pytest.raises(BadBaseline, match=r"meta\.expires = 'soon'; a date"):
        exchange(plan(), expires="soon")
