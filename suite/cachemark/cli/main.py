"""``cachemark``: the group of all commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import click

from ..core.version import __version__
from .advise import advise, roofline
from .compare import bisect, compare
from .endings import ending, notes_on_lines, open_closed_streams, terminable, watched
from .export import export
from .gate import baseline, check, incident
from .generate import generate
from .measure import explain, max_batch, price, run, share
from .measure_model import measure
from .score import score
from .setup import calibrate, doctor, weights
from .stored import db, ingest, list_, report, show
from .test import new, test

RESUMED = "Completed work is stored; run the same command to resume."
WATCHED = {  # commands that import plug-ins in their own process, and whose 0 is an answer
    "advise", "bisect", "calibrate", "compare", "explain", "export", "generate", "list", "max-batch", "measure", "price", "roofline", "run",
    "score", "share", "test"}
KEPT = {  # messages after Ctrl-C about stored work
    **dict.fromkeys(("run", "measure", "max-batch", "share", "weights"), RESUMED),
    "compare": "The pairs measured so far are stored; the same command compares from the start.",
}


class _Main(click.Group):
    """Group of commands that end every error with one line and a documented exit code."""

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        open_closed_streams()
        own_process = args is None
        with watched() if own_process and sys.argv[1:2] and sys.argv[1] in WATCHED else nullcontext(), terminable(own_process=own_process):
            return super().main(args, *arguments, **options)

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        with ending():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, context: click.Context) -> object:
        with ending(lambda: KEPT.get(str(context.invoked_subcommand), "")), notes_on_lines():
            return super().invoke(context)


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cachemark")
def main() -> None:
    """Benchmark cache methods for autoregressive image generators."""


for command in (advise, baseline, bisect, calibrate, check, compare, db, doctor, explain, export, generate, incident, ingest, list_,
                max_batch, measure, new, price, report, roofline, run, score, share, show, test, weights):
    main.add_command(command)
