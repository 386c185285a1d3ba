"""The gate end to end, with real processes: A/A tests pass, injected slowdowns are found, and bisection names their commit.

Slowdowns are injected as code, in commits of a copy of this package. Configurations of one comparison share their processes. The model is
the tests' own with 16 tokens; the self-test runs on the bundled one.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import examples
from support.repositories import SLOWER, Repository
from support.stages import Stage, call, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
WIDER = """

_begin = Window.begin


def _wasteful(self, layout, sites, memory):
    _begin(self, layout, sites, memory)
    extra = memory.nbytes("slots") // 10 if "extra" not in memory.tensors else memory.tensors["extra"][1].nbytes
    memory.zeros("extra", (extra,), __import__("torch").uint8, "slots")


Window.begin = _wasteful
"""
FLIPPED = """

_generate = LlamaGen.generate


def _flipping(self, *given, **more):
    tokens = _generate(self, *given, **more).clone()  # what is made in inference mode cannot be changed outside of it
    tokens[0, -1] = (tokens[0, -1] + 1) % self.config.vocab
    return tokens


LlamaGen.generate = _flipping
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def configs(tmp_path: Path, count: int) -> Stage:
    """A plan of that many configurations that do the same."""
    variants = ", ".join(f'{{ name = "calm", variant = "n{number:02}" }}' for number in range(count))
    return stage(tmp_path / "stage", variants, examples.MODEL)


def labels(count: int) -> list[str]:
    return [word for number in range(count) for word in ("--only", f"calm: n{number:02} 1/2")]


QUICK = ("--delta", 0.5)  # where times are not what is asked


def compare(at: Stage, *more: object) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    result = call("compare", at.plan, "--plugin", at.plugin, "--store", at.store, "--threads", 1, "--json", *more)
    assert result.stdout, result.output
    return result.exit_code, {(r["label"], r["metric"]): r for r in json.loads(result.stdout)["rows"]}


def test_thirty_comparisons_of_equal_sides_alarm_never(tmp_path: Path) -> None:
    at = configs(tmp_path, 30)
    code, result = compare(at, "--env", sys.executable, sys.executable, "--no-aa", "--images", 3, *labels(30))
    timed = [row["verdict"] for (_, metric), row in result.items() if metric == "latency"]
    assert len(timed) == 30
    assert timed.count("regressed") == 0
    assert not [key for key, row in result.items() if row["verdict"] in ("regressed", "changed")], "bytes and tokens are the same"
    assert code in (0, 3)


def noise(at: Stage, count: int) -> float:
    """Half the width of the widest interval, as a log ratio, that this machine leaves around the times of A/A tests."""
    _, result = compare(at, "--env", sys.executable, sys.executable, "--no-aa", "--images", 3, *labels(count))
    reasons = [row["reason"] for (_, metric), row in result.items() if metric == "latency"]
    ends = [re.search(r"\(([-+][\d.]+) % to ([-+][\d.]+) %", reason) for reason in reasons]
    assert len(reasons) == count
    assert all(ends), reasons
    low_high = [[math.log1p(float(end) / 100) for end in result.groups()] for result in ends if result]
    return max((high - low) / 2 for low, high in low_high)


def test_a_slow_down_that_this_machine_can_show_is_found_in_nine_of_ten(tmp_path: Path, repository: Repository) -> None:
    """A fifth, or where A/A tests scatter so much that no test could be sure of it, two and a half times half their interval: a machine
    whose clock others disturb gives a process of this small model half or twice its speed."""
    at = configs(tmp_path, 10)
    share = max(0.2, math.expm1(2.5 * noise(at, 10)))
    assert share < 3, "a machine so noisy shows nothing"
    slow = repository.commit("slower", "models/llamagen.py", SLOWER.format(share=share))
    code, result = compare(
        at, "--commits", repository.first, slow, "--repository", repository.folder, "--no-aa", "--images", 3, *labels(10))
    timed = {config: (row["verdict"], row["reason"]) for (config, metric), row in result.items() if metric == "latency"}
    assert len(timed) == 10
    assert sum(verdict == "regressed" for verdict, _ in timed.values()) >= 9, (share, timed)
    assert code == 1


def test_more_bytes_and_another_token_are_caught_exactly(tmp_path: Path, repository: Repository) -> None:
    at = configs(tmp_path, 2)
    wide = repository.commit("wider", "methods/window.py", WIDER)
    code, result = compare(at, "--commits", repository.first, wide, "--repository", repository.folder, "--no-aa", *QUICK, *labels(2))
    assert code == 1
    grown = [row for (_, metric), row in result.items() if metric == "kv_allocated"]
    assert [row["verdict"] for row in grown] == ["regressed"] * 2
    assert all(1.05 < row["change"] <= 1.1 for row in grown), "a tenth of the slots"
    assert {row["verdict"] for (_, metric), row in result.items() if metric == "output_hash"} == {"equivalent"}

    flipped = repository.commit("flipped", "models/llamagen.py", FLIPPED)
    code, result = compare(at, "--commits", wide, flipped, "--repository", repository.folder, "--no-aa", *QUICK, *labels(2))
    assert code == 1
    assert [row["verdict"] for (_, metric), row in result.items() if metric == "output_hash"] == ["changed"] * 2
    assert {row["verdict"] for (_, metric), row in result.items() if metric == "kv_allocated"} == {"equivalent"}


def bisected(at: Stage, repository: Repository, last: str) -> str:
    """The commit that `cachemark bisect` names, in a process of its own; empty where it names none."""
    words = ("bisect", "calm: n00 1/2", "--plan", at.plan, "--plugin", at.plugin, "--threads", 1, "--images", 3, "--json",
             "--repository", repository.folder, "--good", repository.first, "--bad", last)
    command = [sys.executable, "-P", "-c", "from cachemark.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr)
    return str(json.loads(done.stdout)["commit"]) if done.returncode == 0 else ""


def test_bisection_names_the_commit_in_four_of_five(tmp_path: Path) -> None:
    """Two at a time: each measures on one thread, and what is sought is far larger than what two of them do to each other."""
    at, hunts = configs(tmp_path, 1), []
    for seed in range(5):
        repository = Repository(tmp_path / f"repository{seed}")
        bad = random.Random(seed).randint(1, 16)
        change = ("models/llamagen.py", SLOWER.format(share=0.5))
        commits = [repository.commit(f"commit {n}", *(change if n == bad else ())) for n in range(1, 17)]
        hunts.append((repository, commits[bad - 1], commits[-1]))
    with ThreadPoolExecutor(2) as two:
        named = list(two.map(lambda hunt: bisected(at, hunt[0], hunt[2]), hunts))
    assert sum(name == culprit for name, (_, culprit, _) in zip(named, hunts, strict=True)) >= 4, named


def test_the_gate_proves_itself() -> None:
    result = call("test", "gate")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("passed: ") == 3
