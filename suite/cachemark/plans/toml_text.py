"""Tables as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
