"""Overhead of the harness: the share of a run's wall time outside the measurement of cases.

    python -m studies.overhead [--seconds 20] [--model tiny-llamagen] [--threads N]

**Wall** is the time from start to end of the process `cachemark run`, by a monotonic clock. **Measured** is the sum of ``Outcome.seconds``
over all cases: from the start of a case in a trial with a loaded model until its values are complete. It includes warm-up, watched and
timed generations, image decoding, and the passes of fidelity and quality, whether they are in a sample or not. All else is **overhead**:
starting Python twice, importing torch, reading the plan, measuring the machine's rates, loading the model, sending outcomes through the
pipe, writing artifacts and rows. Nothing runs in parallel here, so

    overhead = 1 - measured / wall.

The plan has one model with the full cache, its reference rows and three methods. Each is repeated until it takes at least ``--seconds``; a
short run finds the number of repeats first. All run in one process: with ``trial = "case"`` every case has its own start.
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

from .origin import Origin

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
SMALLEST = (3, 4)  # repeats and samples of the run that measures the time of a generation
MOST = 2000  # samples


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and outcomes of one run."""

    wall: float
    outcomes: list[Outcome]

    @property
    def measured(self) -> float:
        """Seconds spent on measuring cases."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def shortest(self) -> float:
        """Seconds of the shortest case."""
        return min(outcome.seconds for outcome in self.outcomes)

    @property
    def share(self) -> float:
        """Fraction of the wall time outside the measurement of cases."""
        return 1 - self.measured / self.wall

    def __str__(self) -> str:
        return (f"{len(self.outcomes)} cases of {self.shortest:.1f} s and more: {self.wall:.1f} s of wall time, "
                f"{self.measured:.1f} s measured, {self.wall - self.measured:.1f} s outside: {percent(self.share)}")


def cost(plan: Path, *arguments: str) -> Cost:
    """Run a plan in a separate process, into a store next to it."""
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
    arguments = parser.parse_args()
    origin = Origin(arguments.threads)
    print(origin)
    with tempfile.TemporaryDirectory(prefix="cachemark-") as folder:
        def run(name: str, repeats: int, samples: int) -> Cost:
            plan = Path(folder, f"{name}.toml")
            plan.write_text(PLAN.format(model=arguments.model, repeats=repeats, samples=samples), encoding="utf-8")
            return cost(plan, "--threads", str(arguments.threads))

        short = run("short", *SMALLEST)
        print(f"short: {short}", flush=True)
        times = arguments.seconds / short.shortest * 1.2
        long = run("long", max(3, round(SMALLEST[0] * times)), min(MOST, max(4, round(SMALLEST[1] * times))))
        print(f"long:  {long}")
        if long.shortest < arguments.seconds:
            print(f"The shortest case took less than {arguments.seconds:g} s, so this is not the overhead of the requested plan.")


if __name__ == "__main__":
    main()
