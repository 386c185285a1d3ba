"""Tables of prompts: CSV, TSV, JSONL, JSON and parquet files with named columns.

The prompts are in a column ``prompt``, ``caption`` or ``text`` (any case). A column ``file``, ``file_name``, ``filename``, ``image``,
``id`` or ``image_id`` names the image of each prompt, and ``category`` its category. A JSON file is a list of rows, or one row per id.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ..core.errors import BadPlan
from ..core.wording import shown

TABLES = (".csv", ".tsv", ".parquet")
PROMPTS, FILES, CATEGORIES = ("prompt", "caption", "text"), ("file", "file_name", "filename", "image", "id", "image_id"), ("category",)
MOST = 100_001  # rows that are read: one more than a list may have
ID = "id"  # column of the keys of a JSON object


@dataclass(frozen=True)
class PromptTable:
    """The columns of a table that are used; empty if it lacks them."""

    prompts: tuple[str, ...]
    files: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


def is_table(text: str) -> bool:
    """Return whether the first line of a text is a header with tabs that names a column of prompts."""
    cells = text.partition("\n")[0].split("\t")
    return len(cells) > 1 and any(cell.strip().lower() in PROMPTS for cell in cells)


def read_table(path: Path, text: str) -> PromptTable:
    """Return the prompts of a table; ``text`` is its content, empty for parquet. Raises BadPlan."""
    rows = list(islice(_rows(path, text), MOST))
    columns = {str(name).strip().lower(): name for name in (rows[0] if rows else {}) if name is not None}
    prompts = next((columns[name] for name in PROMPTS if name in columns), None)
    if prompts is None:
        raise BadPlan(f"{path} has {f'the columns {shown(list(columns))}' if rows else 'no rows'}, none of them {', '.join(PROMPTS)}.",
                      remedy="Give the column with the prompts one of these names.")
    if bad := next((number for number, row in enumerate(rows, 1) if not isinstance(row.get(prompts), str)), 0):
        raise BadPlan(f"{path}: row {bad} has no {prompts}.", remedy="Fix that row, or remove it.")
    files, categories = (next((columns[name] for name in names if name in columns), None) for names in (FILES, CATEGORIES))
    return PromptTable(tuple(row[prompts] for row in rows), *(
        () if name is None else tuple(str(row.get(name) or "") for row in rows) for name in (files, categories)))


def _rows(path: Path, text: str) -> Iterable[Mapping[Any, Any]]:
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix in (".json", ".jsonl"):
        return _objects(path, text)
    header = text.partition("\n")[0]
    delimiter = "\t" if path.suffix == ".tsv" else ";" if ";" in header and "," not in header else ","
    try:
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise BadPlan(f"{path} is not a table: {error}.", remedy="Write it again as CSV or TSV.") from error


def _objects(path: Path, text: str) -> Sequence[Mapping[str, Any]]:
    try:
        content: Any = [from_json(line) for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else from_json(text)
    except ValueError as error:
        raise BadPlan(f"{path} is not {path.suffix[1:].upper()}: {error}.", remedy="Write it again.") from error
    if isinstance(content, dict):
        content = [{ID: key, **row} if isinstance(row, dict) else row for key, row in content.items()]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise BadPlan(f"{path} has no rows with named columns.", remedy="Write an object per prompt, such as {\"prompt\": \"a red star\"}.")
    return content


def _parquet(path: Path) -> Sequence[Mapping[str, Any]]:
    if find_spec("pyarrow") is None:
        raise BadPlan(f"{path} cannot be read without pyarrow.", remedy="Install it with: pip install pyarrow")
    import pandas

    try:
        rows: list[dict[str, Any]] = pandas.read_parquet(path).to_dict("records")
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        raise BadPlan(f"{path} is not a parquet file, or a damaged one: {type(error).__name__}.", remedy="Write it again.") from error
    return rows
