"""What the harness itself costs: the share of a run's wall time in which no case is being measured.

    python benchmarks/overhead.py [--seconds 20] [--model tiny-llamagen] [--threads N]

**Wall** is from the start of the process `cachemark run` to its end, by a monotonic clock. **Measured** is the sum of what every case says
it took (``Outcome.seconds``): from the moment at which its trial has the model and turns to the case, until its values are complete.
That holds the warm-up, watched and timed generations, image decoding, and the passes of fidelity and quality, whether they are in a
sample or not. All else is **overhead**: starting Python twice, importing torch, reading the plan, asking the machine for its rates,
loading the model, sending outcomes through the pipe, writing artifacts and rows. Nothing runs beside anything else here, so

    overhead = 1 - measured / wall.

The plan is one model with the full cache, its reference rows and three methods, each generated as often as makes it take ``--seconds`` or
more, all in one process: with ``trial = "case"`` every case pays for a start of its own. How often that is, a short run finds out first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cachemark.core.result import Outcome
from cachemark.core.wording import percent
from cachemark.store.db import Store
from origin import Origin

PLAN = """name = "overhead"
[timing]
warmup = 1
repeats = {repeats}
[fidelity]
seeds = "s2k"
samples = {samples}
[[cells]]
model = "{model}"
methods = ["window", "random", "streaming"]
batch = 4
"""
SMALLEST = (3, 4)  # repeats and samples of the run that finds out how long a generation takes
MOST = 2000  # samples


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds of wall time, and outcomes."""

    wall: float
    outcomes: list[Outcome]

    @property
    def measured(self) -> float:
        """Seconds in which a case was being measured."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def shortest(self) -> float:
        """Seconds of the shortest case."""
        return min(outcome.seconds for outcome in self.outcomes)

    @property
    def share(self) -> float:
        """The part of the wall time in which none was."""
        return 1 - self.measured / self.wall

    def __str__(self) -> str:
        return (f"{len(self.outcomes)} cases of {self.shortest:.1f} s and more: {self.wall:.1f} s of wall time, "
                f"{self.measured:.1f} s measured, {self.wall - self.measured:.1f} s outside: {percent(self.share)}")


def cost(plan: Path, *arguments: str) -> Cost:
    """Run a plan in a process of its own, into a store beside it."""
    store = plan.with_suffix(".sqlite")
    command = [sys.executable, "-P", "-c", "from cachemark.cli import main; main()", "run", str(plan), "--store", str(store), *arguments]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.monotonic() - began
    with Store.open(store, create=False, read_only=True) as held:
        return Cost(wall, held.outcomes(held.run().id))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="least seconds of a case")
    parser.add_argument("--model", default="tiny-llamagen")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    origin = Origin(given.threads)
    print(origin)
    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder:
        def run(name: str, repeats: int, samples: int) -> Cost:
            plan = Path(folder, f"{name}.toml")
            plan.write_text(PLAN.format(model=given.model, repeats=repeats, samples=samples), encoding="utf-8")
            return cost(plan, "--threads", str(given.threads))

        short = run("short", *SMALLEST)
        print(f"short: {short}", flush=True)
        times = given.seconds / short.shortest * 1.2
        long = run("long", max(3, round(SMALLEST[0] * times)), min(MOST, max(4, round(SMALLEST[1] * times))))
        print(f"long:  {long}")
        if long.shortest < given.seconds:
            print(f"The shortest case took less than {given.seconds:g} s: the share is that of another plan than was asked for.")


if __name__ == "__main__":
    main()
