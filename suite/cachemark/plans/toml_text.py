"""TOML that somebody wrote, as a table: no larger and no deeper than anybody would write by hand; and a table as TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.edited import nested_deeper
from ..core.errors import BadPlan

LARGEST = 1_000_000  # bytes of a file
DEEPEST = 16  # lists and tables inside one another
_KEY = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_CHAIN = re.compile(rf"(?:^|[{{,])[\s\[]*+(?:{_KEY}\s*+\.\s*+){{{DEEPEST}}}", re.MULTILINE)  # a.b.c…: its reader takes the square of it


def toml_file(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file and the table that it says. Raises BadPlan for one that cannot be read, is too large or nested too deep, or is no
    TOML, with the line as far as it is known."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise BadPlan(f"{path} cannot be read: {error.strerror}.", remedy="Give the path of a TOML file.") from None
    if len(content) > LARGEST:
        raise BadPlan(f"{path} has more than {LARGEST} bytes.", remedy="Split the plan, or shorten its lists.")
    try:
        text = content.decode("utf-8")
        if chain := _CHAIN.search(text):
            raise _too_deep(path, text.count("\n", 0, chain.end()) + 1)
        data = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:  # of TOML, of UTF-8, and of an integer that has more digits than Python reads
        raise BadPlan(f"{path}: not TOML: {error}.", remedy="Fix the syntax.") from None
    if nested_deeper(data, DEEPEST):
        raise _too_deep(path)
    return text, data


def toml_of(table: Mapping[str, Any]) -> str:
    """A table as TOML: its lists of tables as ``[[blocks]]``, tables further down on one line."""
    plain = [f"{key} = {_inline(value)}" for key, value in table.items() if not _blocks(value)]
    blocks = ["\n".join([f"\n[[{key}]]", *(f"{name} = {_inline(inner)}" for name, inner in block.items())])
              for key, value in table.items() if _blocks(value) for block in value]
    return "\n".join([*plain, *blocks]) + "\n"


def _blocks(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _inline(value: object) -> str:
    """A value on one line. JSON writes texts, numbers and truth as TOML does, but DEL."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _too_deep(path: Path, line: int = 0) -> BadPlan:
    where = f"{path}:{line}" if line else str(path)
    return BadPlan(f"{where}: lists and tables are nested more than {DEEPEST} deep.", remedy="See docs/reference/plan-file.md.")
