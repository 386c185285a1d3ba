"""TOML files as tables, and tables as TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadPlan


def toml_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and its table. Raises BadPlan, with the line if it is known."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise BadPlan(f"{path} cannot be read: {error.strerror}.", remedy="Use the path of a TOML file.") from None
    except RecursionError:
        raise BadPlan(f"{path}: lists and tables are nested too deep.", remedy="See docs/reference/plan-file.md.") from None
    except ValueError as error:  # not TOML, not UTF-8, or an integer with more digits than Python reads
        raise BadPlan(f"{path}: not TOML: {error}.", remedy="Fix the syntax.") from None


def toml_of(table: Mapping[str, Any]) -> str:
    """Return a table as TOML: lists of tables as ``[[blocks]]``, deeper tables on one line."""
    plain = [f"{key} = {_inline(value)}" for key, value in table.items() if not _blocks(value)]
    blocks = ["\n".join([f"\n[[{key}]]", *(f"{name} = {_inline(inner)}" for name, inner in block.items())])
              for key, value in table.items() if _blocks(value) for block in value]
    return "\n".join([*plain, *blocks]) + "\n"


def _blocks(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes DEL, JSON does not
