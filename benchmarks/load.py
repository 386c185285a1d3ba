"""CPU time, memory and output of commands on stores with many results, side by side for several builds.

    python benchmarks/load.py --folder /tmp/load BASE/.venv/bin/cachemark .venv/bin/cachemark

Writes two stores of invented values: one run of 5,000 cases, and 1,430 runs of 14 cases. Every build reads the same files. CPU seconds are
of a command and its children, memory is the peak resident set of its largest process, shared pages included. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from cachemark.core.facts import Facts
from cachemark.core.git import git
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.store.db import Store

METHODS = ("window", "streaming", "random", "h2o", "rkv", "linear", "keydiff", "key_norm", "snapkv", "tova", "pyramidkv", "adakv", "headkv")
CELLS, BUDGETS, SEEDS = 20, 19, 64  # 20 × (3 + 13 × 19) = 5,000 cases
NIGHTS, NIGHTLY, PER_NIGHT = 1430, METHODS[:6], ("1/2", "1/4")
REPOSITORY = Path(__file__).parents[1]
FULL_BYTES, SECONDS, TOKENS = 4e6, 2.0, 256
ENVIRONMENT = Environment("Example CPU, 2 threads", "example-cpu-2-threads", "5f1c0a7be2d94410",
                          {"python": "3.12.4", "torch": "2.9.0", "threads": 2, "cpu": "Example CPU", "cpus": 2})
PAPER = Sampling(cfg_scale=1.5, top_k=0, temperature=1.0)


def outcomes(methods: Sequence[str], budgets: Sequence[str], batch: int, draws: random.Random) -> Iterator[Outcome]:
    """Yield the full cache, both reference rows and the methods of a block."""
    full = Case("tiny-llamagen", "9c2e5b71d0aa44f3", (16, 16), "classes-10", PAPER, "full", batch=batch, samples=SEEDS, role="baseline")
    yield _outcome(full, 1.0, draws)
    for role in ("other_seeds", "other_batch"):
        yield Outcome(_changed(full, role=role), Status.OK, _fidelity(draws))
    for method in methods:
        for budget in budgets:
            yield _outcome(_changed(full, role="candidate", method=method, budget=budget, parameters={"sinks": 1}),
                           float(Fraction(budget)), draws)


def _changed(case: Case, **changes: object) -> Case:
    return Case.from_json({**case.to_json(), **changes})


def _outcome(case: Case, ratio: float, draws: random.Random) -> Outcome:
    live = [FULL_BYTES * case.batch * min(n / TOKENS, ratio) for n in range(16, TOKENS + 1, 16)]
    facts = Facts.from_json({"kernel": "sdpa", "true_ratio": ratio, "source": "an invented paper",
                             "live_bytes": {"tokens": list(range(16, TOKENS + 1, 16)), "live": live}})
    latency = [SECONDS * draws.gauss(1, 0.01) for _ in range(5)]
    samples = {"latency": latency, "tokens_per_s_last": [TOKENS / each for each in latency], "kv_allocated": [live[-1]],
               "color_consistency": [draws.choice((0.5, 0.75, 1.0)) for _ in range(SEEDS)],
               **(_fidelity(draws) if case.role == "candidate" else {})}
    return Outcome(case, Status.OK, samples, seconds=30.0, facts=facts)


def _fidelity(draws: random.Random) -> dict[str, list[float]]:
    return {"token_agreement": [draws.random() for _ in range(SEEDS)], "kl": [draws.expovariate(2) for _ in range(SEEDS)],
            "psnr": [draws.uniform(10, 40) for _ in range(SEEDS)], "ssim": [draws.random() for _ in range(SEEDS)]}


def write(path: Path, runs: int, blocks: Sequence[int], methods: Sequence[str], budgets: Sequence[str]) -> None:
    """Write a store of so many runs, each with a block per batch size of ``blocks``; an existing store stays.

    Every run has the values of the first, and a commit of its own."""
    if path.exists():
        return
    commits, draws, part = git(REPOSITORY, "rev-list", "HEAD").split(), random.Random(0), path.with_suffix(".part")
    with Store.open(part) as store, store.new_run("load", {"name": "load"}, ENVIRONMENT, code_of(commits[0])) as number:
        for batch in blocks:
            for outcome in outcomes(methods, budgets, batch, draws):
                store.save(number, outcome)
    with closing(sqlite3.connect(part)) as database, database:
        tables = {table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")] for table in ("run", "outcome", "membership")}
        last = database.execute("SELECT max(id) FROM outcome").fetchone()[0]
        for copy in range(1, runs):
            changed = {"run": {"id": copy + 1, "code": json.dumps(code_of(commits[copy % len(commits)]))},
                       "outcome": {"id": f"id + {copy * last}", "run_id": copy + 1},
                       "membership": {"id": f"id + {copy * last}", "run_id": copy + 1, "outcome_id": f"outcome_id + {copy * last}"}}
            for table, names in tables.items():
                values = [f"'{new}'" if name == "code" else str(new) for name in names for new in [changed[table].get(name, name)]]
                first = f"{'id' if table == 'run' else 'run_id'} = 1"
                database.execute(f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} WHERE {first}")
    part.rename(path)


def code_of(commit: str) -> dict[str, object]:
    """Return the code of a run at a commit."""
    return {"commit": commit, "dirty": False, "hash": "b1946ac92492d234", "version": "1.0"}


class Cost(NamedTuple):
    """CPU seconds with children, peak MiB of the largest process, and MiB of the output."""

    cpu: float
    peak: float
    written: float


def cost(command: Sequence[str], output: Path) -> Cost:
    """Run a command that writes ``output``, a file or folder, and return its cost.

    Raises CalledProcessError, except for code 1, a verdict."""
    if output.is_dir():
        shutil.rmtree(output)
    output.unlink(missing_ok=True)
    with open(os.devnull, "wb") as nothing:
        process = subprocess.Popen(command, stdout=nothing, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise subprocess.CalledProcessError(process.returncode, command)
    files = [output] if output.is_file() else output.rglob("*") if output.is_dir() else []
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, sum(file.stat().st_size for file in files) / 2**20)


def main() -> None:
    """Write the stores, run every command with every build, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", default="", help="Measure commands that contain this text.")
    parser.add_argument("builds", nargs="+", help="Commands; ratios are to the first.")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    wide, nights, out = given.folder / "wide.sqlite", given.folder / "nights.sqlite", given.folder / "out"
    write(wide, 1, range(1, CELLS + 1), METHODS, [f"{n}/{BUDGETS + 1}" for n in range(1, BUDGETS + 1)])
    write(nights, NIGHTS, (16,), NIGHTLY, PER_NIGHT)
    commands = {
        "report, 5,000 cases": ["report", out, "--store", wide],
        "export csv, 5,000 cases": ["export", "csv", out, "--store", wide],
        "export asv, 20,020 outcomes": ["export", "asv", out, "--store", nights, "--repository", REPOSITORY],
        "explain": ["explain", "demo", "--store", nights],
        "price": ["price", "demo", "--store", nights],
        "advise": ["advise", "--model", "tiny-llamagen", "--card", "cpu"],
    }
    print("| command | build | CPU s | peak MiB | output MiB | CPU ratio | memory ratio | output ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, command in commands.items():
        if given.only in name:
            costs = {build: cost([build, *map(str, command)], out) for build in given.builds}
            for build, each in costs.items():
                ratios = (f"{a / b:.2f}" if b else "" for a, b in zip(each, costs[given.builds[0]], strict=True))
                print(f"| {name} | {build} | {each.cpu:.1f} | {each.peak:.0f} | {each.written:.2f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
