"""``cachemark``: the group of commands.

Commands are found by name and imported when called, so that ``--help`` and a usage error answer at once.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from ..core.version import __version__
from .endings import ending
from .streams import safe_streams

COMMANDS = {
    "advise": "Say which cache to use for a model on a device.",
    "baseline": "Save, list and compare accepted results.",
    "bisect": "Find the commit that made a case worse.",
    "calibrate": "Measure what a method asks to be known of a model.",
    "check": "Judge a run against a baseline; the exit code says how it went.",
    "compare": "Compare two cases, commits or environments in pairs.",
    "db": "Create, check, back up, merge or prune a store.",
    "doctor": "Check what this machine can measure, and what is missing.",
    "export": "Export results and images to other programs.",
    "incident": "List, acknowledge and accept known regressions.",
    "ingest": "Import results of other programs into the store.",
    "list": "List models, methods, decoders, metrics, plans or runs.",
    "new": "Begin a package with a method, a model or a metric of your own.",
    "report": "Write the HTML report of a run.",
    "roofline": "Print lower bounds by arithmetic: times, bytes, ideal speed-ups.",
    "run": "Measure a plan and store every result.",
    "show": "Print one run, or one case with its raw samples.",
    "test-method": "Hold a method to the checks that ours are held to.",
    "test-metric": "Hold a metric of images to what a run relies on.",
    "test-model": "Hold a model to the checks that ours are held to.",
    "weights": "List, fetch, verify and convert published weights.",
}

KEPT = {
    "bisect": "Nothing was stored.",
    "compare": "The pairs measured so far are stored; the same command compares from the start.",
    "run": "Completed cases are stored; run the same command to resume.",
    "weights": "What was fetched or converted is kept; run the same command to go on.",
}  # what Ctrl-C leaves behind


class _Lazy(click.Group):
    """Imports ``cli/<name>.py`` when that command is asked for. A wrong name is answered with the nearest one."""

    def main(self, *given: Any, **options: Any) -> Any:
        """Run as a program whose streams can write every letter."""
        with safe_streams():
            return super().main(*given, **options)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any,
    ) -> click.Context:
        """Read the options; what is wrong with them ends with a line and a code of its own."""
        with ending():
            return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        place = name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f".{place}", __package__), place)
        return command

    def resolve_command(self, context: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            context.fail(f"No such command {name!r}. {hint}Known: {', '.join(sorted(COMMANDS))}.")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def invoke(self, context: click.Context) -> object:
        """Run; whatever goes wrong ends with a line and a code of its own."""
        with ending(lambda: KEPT.get(str(context.invoked_subcommand), "")):
            return super().invoke(context)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cachemark")
def main() -> None:
    """Honest speed-ups: benchmark cache methods of autoregressive image generators."""
