"""The gate end to end, with real processes: A/A tests pass, injected slowdowns are found, and bisection names their commit.

Slowdowns are injected as code, in commits of a copy of this package. Configurations of one comparison share their processes. The model is
the tests' own with 16 tokens; the self-test runs on the bundled one.
"""

import json
import math
import os
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


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def configs(tmp_path: Path, count: int) -> Stage:
    """A plan of that many configurations that do the same."""
    variants = ", ".join(f'{{ name = "calm", variant = "n{number:02}" }}' for number in range(count))
    return stage(tmp_path / "stage", variants, examples.MODEL)


def labels(count: int) -> list[str]:
    return [word for number in range(count) for word in ("--only", f"calm: n{number:02} 1/2")]


def compare(at: Stage, *more: object) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    result = call("compare", at.plan, "--plugin", at.plugin, "--store", at.store, "--threads", 1, "--json", *more)
    assert result.stdout, result.output
    return result.exit_code, {(r["label"], r["metric"]): r for r in json.loads(result.stdout)["rows"]}


def test_thirty_comparisons_of_equal_sides_alarm_never(tmp_path: Path) -> None:
    at = configs(tmp_path, 30)
    code, result = compare(at, "--env", sys.executable, sys.executable, "--no-aa", "--generations", 3, *labels(30))
    timed = [row["verdict"] for (_, metric), row in result.items() if metric == "latency"]
    assert len(timed) == 30
    assert timed.count("regressed") == 0
    assert not [key for key, row in result.items() if row["verdict"] in ("regressed", "changed")], "bytes and tokens are the same"
    assert code in (0, 3)


def noise(at: Stage, count: int) -> float:
    """Half the width of the widest interval, as a log ratio, that this machine leaves around the times of A/A tests."""
    _, result = compare(at, "--env", sys.executable, sys.executable, "--no-aa", "--generations", 3, *labels(count))
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
        at, "--commits", repository.first, slow, "--repository", repository.folder, "--no-aa", "--generations", 3, *labels(10))
    timed = {config: (row["verdict"], row["reason"]) for (config, metric), row in result.items() if metric == "latency"}
    assert len(timed) == 10
    assert sum(verdict == "regressed" for verdict, _ in timed.values()) >= 9, (share, timed)
    assert code == 1


def bisected(at: Stage, repository: Repository, last: str) -> str:
    """The commit that `cachemark bisect` names, in a process of its own; empty where it names none."""
    words = ("bisect", "calm: n00 1/2", "--plan", at.plan, "--plugin", at.plugin, "--threads", 1, "--generations", 3, "--json",
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


SCRIPT = Path(__file__).parents[2] / "ci" / "nightly.sh"
AS_FAST_AS_BEFORE = "\n\nLlamaGen.generate = _generate\n"
WRONG_EVICTION = """

def _newest(self, step, slots):
    for number, run in enumerate(slots.runs):
        if slots.live[number] - run.condition > self.B:
            slots.evict_place(number, run.condition + self.sinks)


Streaming.evict = _newest
"""


class Nights:
    """A runner whose store, incidents and baselines outlive a night."""

    def __init__(self, folder: Path, at: Stage, repository: Repository) -> None:
        self.folder, self.at, self.count = folder, at, 0
        command = folder / "bin" / "cachemark"
        command.parent.mkdir(parents=True)
        command.write_text(f"#!{sys.executable}\nfrom cachemark.cli import main\nmain()\n")
        command.chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(repository.folder / "suite"),
            "CACHEMARK_STORE": str(folder / "nights.sqlite"), "CACHEMARK_DEVICE": "cpu", "CACHEMARK_MACHINE": "--threads 1",
            "CACHEMARK_PAIRS": f"--plugin {at.plugin} --generations 3", "GIT_CEILING_DIRECTORIES": str(folder.parent),
        }

    def call(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(list(map(str, command)), env=self.environment, cwd=self.folder, capture_output=True, text=True)

    def night(self) -> tuple[int, str, Path]:
        """The exit code of one more night, what its judgement said, and the folder that it wrote."""
        self.count += 1
        out = self.folder / f"night {self.count}"
        self.environment["CACHEMARK_OUT"] = str(out)
        done = self.call(SCRIPT, self.at.plan, "--plugin", self.at.plugin)
        print(f"night {self.count}: {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
        return done.returncode, (out / "check.txt").read_text(), out


def test_the_exit_code_of_each_night_is_its_verdict(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", weights=True)
    nights = Nights(tmp_path / "runner", stage(tmp_path / "stage", '"streaming", "calm"', examples.MODEL), repository)
    code, messages, out = nights.night()
    assert (code, "Proposed: " in messages) == (0, True)
    assert list((out / "proposed").glob("*/dots.json"))
    assert nights.call("cachemark", "baseline", "save", "--reason", "the first night").returncode == 0  # a person accepts it

    repository.commit("nothing that runs")
    code, messages, out = nights.night()
    assert (code, messages.count("  again: ")) == (0, 0), messages
    assert "0 regressed" in messages

    repository.commit("slower", "models/llamagen.py", SLOWER.format(share=0.6))
    code, messages, out = nights.night()
    assert (code, messages.count("  again: ")) == (1, 1), messages
    assert "<failure" in (out / "junit.xml").read_text()
    assert "regressed" in (out / "comment.md").read_text()

    repository.commit("as fast as before", "models/llamagen.py", AS_FAST_AS_BEFORE)
    repository.commit("wrong eviction", "methods/streaming.py", WRONG_EVICTION)
    code, messages, out = nights.night()
    assert (code, "streaming" in messages) == (1, True), messages
    assert "regressed" in (out / "comment.md").read_text()
