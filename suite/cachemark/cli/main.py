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
    "advise": "Recommend a cache method and budget for a model on a device.",
    "baseline": "Save, replace, list and compare accepted results.",
    "bisect": "Find the commit that made a case worse.",
    "calibrate": "Compute the calibration data that a method needs for a model.",
    "check": "Check a run against its baseline; the exit code is the verdict.",
    "compare": "Compare two cases, commits or environments in pairs.",
    "db": "Create, check, back up, merge or prune a store.",
    "doctor": "Check the devices, rates, noise and packages of this machine.",
    "explain": "Show which cases of a plan would run, and why.",
    "export": "Export results and images to other programs.",
    "incident": "List, acknowledge and accept known regressions.",
    "ingest": "Import results of other programs into a store.",
    "list": "List models, methods, decoders, metrics, plans or runs.",
    "max-batch": "Find the largest batch that fits, for every method of a plan.",
    "new": "Create a template package for a method, model or metric.",
    "price": "Estimate the cost of a plan: device hours, disk and memory.",
    "report": "Write the HTML report of a run.",
    "roofline": "Print lower bounds on the time and memory of a model.",
    "run": "Measure a plan and store every result.",
    "share": "Generate one share of a plan's quality images.",
    "show": "Print a run, or one case with its raw samples.",
    "test": "Test a method, a model or a metric of your own.",
    "weights": "List, fetch and verify published weights.",
}  # the first sentence of each command's help

KEPT = {
    "bisect": "Nothing was stored.",
    "compare": "The pairs measured so far are stored; the same command compares from the start.",
    "max-batch": "Completed cases are stored; run the same command to resume.",
    "run": "Completed cases are stored; run the same command to resume.",
    "share": "Completed parts are stored; run the same command to resume.",
    "weights": "What was fetched is kept; run the same command to go on.",
}  # what Ctrl-C leaves behind


class _Lazy(click.Group):
    """Import ``cli/<name>.py`` when that command is called, and suggest the nearest name for a wrong one."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run as a program whose streams can write every letter."""
        with safe_streams():
            return super().main(*arguments, **options)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any,
    ) -> click.Context:
        """Read the options; an error among them ends with a line and a code of its own."""
        with ending():
            return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f".{module}", __package__), module)
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
        """Run the command; every error ends with a line and a code of its own."""
        with ending(lambda: KEPT.get(str(context.invoked_subcommand), "")):
            return super().invoke(context)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cachemark")
def main() -> None:
    """Benchmark cache methods for autoregressive image generators."""
