"""Completion of suggested commands with the ``--store`` and ``--plugin`` of the running command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

_GIVEN = f"{__name__}.given"
_COMMAND = re.compile(r"\bcachemark(?: [a-z][a-z-]*)+")


def note(context: click.Context, option: click.Parameter, value: str | Sequence[str]) -> None:
    """Remember an option's value from the command line."""
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        context.meta.setdefault(_GIVEN, {})[option.opts[0]] = (value,) if isinstance(value, str) else tuple(value)


def noted(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Remember the value of an option that has no other callback."""
    if value is not None:
        note(context, option, value if isinstance(value, tuple) else str(value))
    return value


def runnable(text: str) -> str:
    """Add the remembered options to every cachemark command in the text that accepts them."""
    context = click.get_current_context(silent=True)
    noted_options = context.meta.get(_GIVEN, {}) if context else {}
    if context is None or not noted_options:
        return text
    return _COMMAND.sub(lambda match: _with_options(match[0], noted_options, context.find_root()), text)


def _with_options(text: str, noted_options: Mapping[str, Sequence[str]], root: click.Context) -> str:
    """Return a command with its options; other text is returned unchanged."""
    words = text.split(" ")
    resolved: click.Command | None = root.command
    names = 1
    while isinstance(resolved, click.Group) and names < len(words):
        resolved = resolved.get_command(root, words[names])
        names += 1
    if resolved is None or isinstance(resolved, click.Group):
        return text
    taken = {name for parameter in resolved.params for name in parameter.opts}
    options = [word for option, values in noted_options.items() if option in taken
               for value in values for word in (option, shlex.quote(value))]
    return " ".join([*words[:names], *options, *words[names:]])
