"""Stored facts that both pages use: packaged JSON files and Markdown helpers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

DATA = Path(str(resources.files("cachemark") / "data"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def vectors() -> dict[str, Any]:
    """Stored outputs of the authors' code by name: family, content, methods and checks."""
    return dict(read_json(DATA / "conformance.json"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (head, *([cell.replace("|", "\\|") for cell in row] for row in rows))]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)
