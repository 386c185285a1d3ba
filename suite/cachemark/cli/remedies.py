"""Commands inside of what is printed: with the store and the plug-ins that this command was given they work as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

_GIVEN = f"{__name__}.given"
_COMMAND = re.compile(r"\bcachemark(?: [a-z][a-z-]*)+")


def note(context: click.Context, option: click.Parameter, given: str | Sequence[str]) -> None:
    """Keep what the command line gives for an option, as it stands there; a default is one of every command."""
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        context.meta.setdefault(_GIVEN, {})[option.opts[0]] = (given,) if isinstance(given, str) else tuple(given)


def noted(context: click.Context, option: click.Parameter, given: Any) -> Any:
    """Callback of an option that :func:`note` keeps and nothing else looks at."""
    if given is not None:
        note(context, option, given if isinstance(given, tuple) else str(given))
    return given


def runnable(text: str) -> str:
    """The text, in which every command of ours that takes one of the options which were noted has it behind its name."""
    context = click.get_current_context(silent=True)
    given = context.meta.get(_GIVEN, {}) if context else {}
    return _COMMAND.sub(lambda found: _with_options(found[0], given, context.find_root()), text) if context and given else text


def _with_options(said: str, given: Mapping[str, Sequence[str]], root: click.Context) -> str:
    """``cachemark show`` with its options; what goes on behind the name, or is no command, as it is."""
    words = said.split(" ")
    found: click.Command | None = root.command
    names = 1
    while isinstance(found, click.Group) and names < len(words):
        found = found.get_command(root, words[names])
        names += 1
    if found is None or isinstance(found, click.Group):
        return said
    taken = {name for parameter in found.params for name in parameter.opts}
    options = [word for option, values in given.items() if option in taken for value in values for word in (option, shlex.quote(value))]
    return " ".join([*words[:names], *options, *words[names:]])
