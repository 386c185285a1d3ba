"""Markdown pages of a command line."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator

import click

INDEX = "index.md"
_FLAG = re.compile(r"(?<![\w-])--?[\w-]+")
_MARKUP = re.compile(r"([\\`*_{}\[\]|])")


def pages(main: click.Group, name: str = "cachemark") -> dict[str, str]:
    """Return Markdown by file name: an index, and one page per command with its subcommands as sections."""
    context = click.Context(main, info_name=name)
    commands = dict(_below(main, context))
    rows = [f"| [`{name} {word}`]({word}.md) | {_text(command.get_short_help_str(limit=200))} |" for word, command in commands.items()]
    index = [f"# {name}", _prose(main), "| command | description |\n|---|---|\n" + "\n".join(rows), *_options(main, context)]
    made = {INDEX: index} | {f"{word}.md": list(_sections(command, context, word, 1)) for word, command in commands.items()}
    return {file: "\n\n".join(part for part in parts if part) + "\n" for file, parts in made.items()}


def _below(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None, word
        yield word, command


def _sections(command: click.Command, parent: click.Context, word: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=word, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * level} {context.command_path}", _prose(command), f"```text\n{usage}\n```", *_options(command, context))
    if isinstance(command, click.Group):
        for below, subcommand in _below(command, context):
            yield from _sections(subcommand, context, below, level + 1)


def _prose(command: click.Command) -> str:
    """Return the help of a command; paragraphs marked ``\\b`` become text blocks."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    return "\n\n".join("```text\n" + part.partition("\n")[2] + "\n```" if part.startswith("\b") else _text(part) for part in parts)


def _options(command: click.Command, context: click.Context) -> list[str]:
    parameters = [param for param in command.get_params(context) if "--help" not in param.opts or context.parent is None]
    records = [record for param in parameters if (record := param.get_help_record(context)) and record[1]]
    cells = [(_FLAG.sub(_unbroken, _plain(names)), _text(" ".join(meaning.split()))) for names, meaning in records]
    rows = "\n".join(f"| <code>{names}</code> | {meaning} |" for names, meaning in cells)
    return [f"| option | meaning |\n|---|---|\n{rows}"] if rows else []


def _unbroken(found: re.Match[str]) -> str:
    return f'<span class="flag">{found[0]}</span>'


def _text(text: str) -> str:
    parts = text.split("`")
    return "".join(f"<code>{_plain(part)}</code>" if at % 2 and at < len(parts) - 1 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", html.escape(text, quote=False))
