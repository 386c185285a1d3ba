"""Cases, outcomes and stores to test with, and the processes that write into a store and are killed."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import event, func, select

from cachemark.core.facts import Facts
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS
from cachemark.store.db import Store
from cachemark.store.schema import Base

ENVIRONMENT = Environment("NVIDIA T4", "ci-cpu", "torch 2.6 / 4 threads", {"host": "a", "threads": 4})
CODE = {"commit": "abc1234", "dirty": True, "hash": "f00", "version": "0.1.0"}


def case(number: int = 0, **fields: Any) -> Case:
    base: dict[str, Any] = {"model": "tiny", "weights": "random:0", "grid": (8, 8), "conditions": "labels", "sampling": Sampling(),
                            "method": "linear", "parameters": {"number": number}, "budget": "1/4"}
    return Case(**{**base, **fields})


def ok(number: int = 0, **fields: Any) -> Outcome:
    samples = {"latency": [0.5 + number, 0.75], "kl": [0.25] * 4, "kv_logical": [4096.0], "peak_memory": [9999.0], "psnr": [30.1, 29.9]}
    base: dict[str, Any] = {"case": case(number), "status": Status.OK, "samples": samples, "result_key": f"skip{number}"}
    return Outcome(**{**base, **fields})


def failed(number: int = 0, status: Status = Status.OOM) -> Outcome:
    return Outcome(case(number), status, log="out of memory")


def begin(store: Store) -> int:
    return store.begin_run("demo", {"plan": "demo"}, ENVIRONMENT, CODE)


def count_rows(store: Store) -> dict[str, int]:
    with store._reading() as session:
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in Base.metadata.sorted_tables}


def write_ten(path: Path, first: int) -> None:
    """One of several writers: ten outcomes of the store's only run, each with an artifact."""
    with Store.open(path) as store:
        for number in range(first, first + 10):
            store.save(1, ok(number), {"tokens.bin": bytes([number])}, trial=f"writer {first}")


def die_at_step(path: Path, step: int) -> None:
    """Save one outcome, then die by SIGKILL at statement ``step`` of the next save, or end well where it has fewer."""
    left = itertools.count(step, -1)

    def perhaps_die(*_: object) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with Store.open(path) as store:
        run = begin(store)
        store.save(run, ok(0))
        for name in ("before_cursor_execute", "commit"):
            event.listen(store._engine, name, perhaps_die)
        store.save(run, ok(1), {"tokens.bin": str(step).encode()}, trial="doomed")


def open_and_count(path: Path) -> int:
    """For a pool of processes that all open one new database at once."""
    with Store.open(path) as store:
        return begin(store)


# Text that JSON and both databases hold as it is: no half characters and no NUL.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
finite_floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), finite_floats, texts)
plain = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6)
objects = st.dictionaries(texts, plain, max_size=4)
cases = st.builds(case, st.integers(0, 10**6), method=texts, parameters=objects, codec=texts, seeds=texts, batch=st.integers(1, 64),
                  evaluation=objects, sampling=st.builds(Sampling, cfg_scale=st.floats(-1_000, 1_000), top_k=st.integers(0, 99)))
positive = st.floats(min_value=2**-50, allow_infinity=False)  # as times, rates and bytes are
sampled = st.one_of(
    st.tuples(st.sampled_from(sorted(METRICS)), st.lists(positive, min_size=1, max_size=8)),
    st.tuples(st.sampled_from(sorted(name for name, of in METRICS.items() if of.kind in ("fidelity", "quality"))),
              st.lists(finite_floats, min_size=1, max_size=8)),
)
metric_values = st.lists(sampled, min_size=1, max_size=6).map(dict)
rest: dict[str, Any] = {"log": texts, "seconds": st.floats(0, 1e9), "result_key": texts, "output_hash": texts,
                        "facts": objects.map(Facts.from_json)}
ok_outcomes = st.builds(Outcome, cases, st.just(Status.OK), metric_values, texts.filter(bool), **rest)
failed_outcomes = st.builds(Outcome, cases, st.sampled_from([s for s in list(Status) if s is not Status.OK]), unjudged=texts,
                            **{**rest, "log": texts.filter(bool)})
outcomes = st.one_of(ok_outcomes, failed_outcomes)
