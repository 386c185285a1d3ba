"""Sides that answer at once, and the commands that compare them."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cachemark.core.facts import Facts
from cachemark.core.result import Environment, Outcome, Status
from cachemark.machine.environment import environment
from cachemark.plans.planned import Prepared
from cachemark.trial.request import Task, TrialRequest
from cachemark.trial.supervisor import Finished
from support.stages import Stage, call

HERE = environment("cpu", 1)
SIDES = ("--cases", "streaming 1/2", "calm 1/2")
CONFIG = "dot streaming 1/2 → calm 1/2"


class Machine:
    """Stub measurements. ``speed``: seconds of a case in a copy of the code; ``changed``: other changes."""

    def __init__(self) -> None:
        self.speed: Callable[[Prepared, TrialRequest], float] = lambda planned, options: 1.0
        self.changed: Callable[[Outcome, TrialRequest], Outcome] = lambda outcome, options: outcome
        self.psnr: Callable[[Prepared, TrialRequest], float] = lambda planned, options: 30.0
        self.noise, self.chance, self.trials = 0.01, random.Random(0), 0
        self.seen: list[Prepared] = []

    def run_trials(self, planned: list[Prepared], options: TrialRequest, started: Any, **_: Any) -> Iterator[Finished]:
        self.trials += 1
        for item in planned:
            seconds = self.speed(item, options) * (1 + self.chance.gauss(0, self.noise))
            samples = {"latency": [seconds] * 3, "kv_allocated": [4096.0]}
            if options.task is Task.IMAGES:
                self.seen.append(item)
                samples = {"psnr": [self.psnr(item, options) + self.chance.gauss(0, 0.1) for _ in range(item.case.samples)]}
            outcome = Outcome(item.case, Status.OK, samples, "a side of a pair", output_hash="cafe", facts=Facts(kernel="sdpa"))
            yield Finished(self.changed(outcome, options), {})

    def identify(self, options: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        return HERE, {"commit": Path(options.code).name, "dirty": False, "hash": options.code or "here", "version": "0"}


def number(options: TrialRequest) -> int:
    return int(Path(options.code, "n").read_text())


def compare(stage: Stage, *more: object) -> Any:
    return call("compare", stage.plan, "--plugin", stage.plugin, "--store", stage.store, "--threads", 1, *more)


def rows(stage: Stage, *more: object) -> tuple[int, dict[tuple[str, str], str]]:
    result = compare(stage, *more, "--json")
    return result.exit_code, {(r["label"], r["metric"]): r["verdict"] for r in json.loads(result.stdout)["rows"]}

