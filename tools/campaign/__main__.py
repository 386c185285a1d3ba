"""Measure on a borrowed GPU in short, resumable calls: stages by importance, with a budget in seconds.

    python -m tools.campaign run FOLDER --budget 540 [--from EARLIER]    on the machine with the GPU, as often as there is time
    python -m tools.campaign run FOLDER --stage ladder --stage masked    these stages alone, in this order
    python -m tools.campaign list FOLDER                                 finished stages, and the purpose of each stage
    python -m tools.campaign home FOLDER --report reports/h100.html      at home: report, accepted baseline, table of targets

A call ends within its budget; the next one continues, on another machine too if it gets the returned folder (``--from``). The folder holds
at most 8 files of at most 16 MiB. ``run --rehearse`` runs every stage without a GPU, with small models. ``requirements.txt`` lists the
wheels to install.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tools.campaign.folder import STATE, Folder
from tools.campaign.runner import CUT, MOST, RESERVE, Stage, call

ROOT = Path(__file__).resolve().parents[2]

# Name, question, seconds, whether it can be continued. Those of a plan are 1.25 times what `cachemark price` expects on an H200 from the
# times of plain passes, a start of each model included.
STAGES = (
    ("kernels", "How fast are our attention kernels, torch's and FlashInfer, and how exact?", 100, False),
    ("device", "What are the device's bandwidth, FLOP/s and launch cost?", 60, False),
    ("ladder", "LlamaGen-XL at batch 256: the full cache, LineAR and R-KV", 177, True),
    ("before", "The same full cache and LineAR by the older build that --before names", 110, False),
    ("scales", "VAR-d30 and Infinity-2B with AMS-KV and FastVAR", 115, True),
    ("masked", "MAR-L with LazyMAR, MARché and DiSA", 205, True),
    ("single", "LlamaGen-XL at batch 1: the graph engine and the eager one", 126, True),
    ("pairs", "Does LineAR against the full cache in pairs pass A/A tests, and how much faster is it?", 240, False),
    ("gate", "Does the gate detect 3 %?", 240, False),
    ("driver", "Do NVML, clocks, energy sensors and leases behave as the tests on a CPU assume?", 60, True),
    ("profiles", "Where does the time of a pass go beyond the roofline?", 120, True),
)  # fmt: skip
# Only if named, or once the others are done.
MORE = (
    ("graphs", "Are captured passes equal to eager ones, for every method and family?", 240, True),
    ("regimes", "From which batch size on is eviction faster?", 190, True),
    ("large", "MAR-H, and VAR-d30 at a smaller batch", 160, True),
    ("decoders", "When is parallel decoding faster, with the full cache and with LineAR?", 200, True),
    ("bundled", "Complete runs of the bundled models, with fidelity and quality", 150, True),
)  # fmt: skip
ALL = (*STAGES, *MORE)


CALLS = 3


def estimate() -> float:
    """Return the estimated seconds of the stages that matter most, with the reserve at the end of each call."""
    return sum(seconds for _, _, seconds, _ in STAGES) + CALLS * RESERVE


def work_of(name: str) -> Callable[..., int]:
    """Return the function of a stage; this imports torch."""
    from tools.campaign import works

    return {
        "kernels": works.compared_kernels, "device": works.device_facts, "graphs": works.tested("tests/gpu/test_graph.py"),
        "ladder": works.measured(1), "before": works.older, "scales": works.measured(2), "masked": works.measured(3),
        "regimes": works.measured(4), "bundled": works.measured(5), "decoders": works.measured(6), "single": works.measured(7),
        "large": works.measured(8),
        "driver": works.tested("tests/gpu/test_cuda.py", "tests/gpu/test_driver.py"),
        "profiles": works.profiled({"var-d30": "baseline", "mar-l": "baseline", "llamagen-xl": "candidate"}),
        "gate": works.gate, "pairs": works.compared,
    }[name]  # fmt: skip


def stages(folder: Path, rehearse: bool) -> list[Stage]:
    """The stages as processes of this module."""

    def command(name: str, seconds: float, work: Path) -> list[str]:
        options = ["--rehearse"] if rehearse else []
        return [sys.executable, "-m", "tools.campaign", "work", str(folder), name, str(work), str(seconds), *options]

    return [Stage(name, what, partial(command, name), price, continued) for name, what, price, continued in ALL]


def chosen(stages: Sequence[Stage], names: Sequence[str]) -> list[Stage]:
    """Return the named stages in the order of the names, or all of them in theirs."""
    by_name = {stage.name: stage for stage in stages}
    return [by_name[name] for name in names] or list(stages)


def run(arguments: argparse.Namespace) -> int:
    """Run stages within the budget; return 0 if nothing is left, 4 if something is, 1 if a stage failed."""
    folder = Folder.open(arguments.folder, arguments.earlier)
    before = arguments.before or (ROOT if arguments.rehearse else None)
    folder.facts |= {name: str(value) for name, value in (("commit", arguments.commit), ("before", before)) if value}
    without = set() if "before" in folder.facts else {"before"}
    folder.save()
    paths = [str(ROOT), str(ROOT / "suite"), os.environ.get("PYTHONPATH")]  # of the stages and their trials
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    most = 3 * MOST if arguments.rehearse else MOST  # a rehearsal's machine may be slow, and others work there
    turns = [stage for stage in chosen(stages(arguments.folder, arguments.rehearse), arguments.stage) if stage.name not in without]
    for line in call(turns, folder, arguments.budget, most=most):
        print(line, flush=True)
    ends = {record.state for record in folder.stages.values()}
    left = {name for name, *_ in STAGES if folder.of(name).state != "done"} - without
    return 1 if "failed" in ends else 4 if left or "cut" in ends else 0


def work(arguments: argparse.Namespace) -> int:
    """Run one stage in the process that :func:`run` started; on SIGTERM also end its worker processes."""
    from tools.campaign.works import Task

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(CUT))
    return work_of(arguments.stage)(Task(Folder.open(arguments.folder), arguments.work, arguments.seconds, arguments.rehearse))


def listed(arguments: argparse.Namespace) -> int:
    """Every stage with its state."""
    folder = Folder.open(arguments.folder) if (arguments.folder / STATE).exists() else Folder(arguments.folder)
    for name, what, price, _ in ALL:
        record = folder.of(name)
        print(f"{name:9} {record.state:8} {record.seconds:5.0f} of {price:3} s  {what}  {record.said}".rstrip())
    print(f"until {STAGES[-1][0]} in all {estimate() / 60:.1f} min in {CALLS} calls")
    return 0


def home(arguments: argparse.Namespace) -> int:
    """Report, baseline and table from a folder that came back."""
    from tools.campaign.home import bring_home

    print(bring_home(Folder.open(arguments.folder), arguments.report, arguments.reason))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, does in (("run", run), ("list", listed), ("home", home), ("work", work)):
        command = commands.add_parser(name, help=(does.__doc__ or "").partition("\n")[0])
        command.set_defaults(does=does)
        command.add_argument("folder", type=Path)
        if name == "run":
            command.add_argument("--budget", type=float, default=540.0, help="seconds that this call may take")
            command.add_argument("--from", dest="earlier", type=Path, help="a folder that an earlier call brought back")
            command.add_argument("--stage", action="append", default=[], choices=[name for name, *_ in ALL], help="run only this stage")
            command.add_argument("--before", type=Path, help="a folder with an older build, to measure it in the same call")
            command.add_argument("--commit", default="", help="commit of this copy, if it is not a checkout")
        if name in ("run", "work"):
            command.add_argument("--rehearse", action="store_true", help="without a GPU, with small models")
        if name == "work":
            for word, kind in (("stage", str), ("work", Path), ("seconds", float)):
                command.add_argument(word, type=kind)
        if name == "home":
            command.add_argument("--report", type=Path, required=True)
            command.add_argument("--reason", default="", help="save an accepted baseline for this reason")
    options = parser.parse_args(arguments)
    return int(options.does(options))


if __name__ == "__main__":
    sys.exit(main())
