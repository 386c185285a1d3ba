"""Lists of prompts: of the package, and files of text-to-image benchmarks.

- a name: a list of the package;

- ``*.jsonl``: GenEval's ``evaluation_metadata.jsonl``, a prompt and the expected content per line;

- ``*.jsonl``, ``*.csv``, ``*.tsv``, ``*.parquet``, other ``*.json``: a table (:mod:`.prompt_tables`);

- ``*.json``: COCO's captions of one split, the first caption of each image in the order of image ids;

- ``*.zip``: COCO's ``annotations_trainval2017.zip``, checked by size and MD5: its captions of the validation images, in the same order;

- a folder: DPG-Bench's ``prompts/*.txt``, with its questions in ``dpg_bench.csv`` next to it;

- any other file: text, one prompt per line.

Smaller subsets of seeds are prefixes of larger ones (:func:`cachemark.core.seeds.subset`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any
from zipfile import ZipFile

from pydantic import ConfigDict, Field, NonNegativeInt, create_model
from pydantic_core import from_json

from ..core.edited import LONGEST, text_of, validating
from ..core.errors import BadPlan, unknown
from ..core.files import PACKAGE
from ..core.wording import count, shown
from .prompt_tables import TABLES, PromptTable, is_table, read_table

PACKAGED = PACKAGE / "data" / "prompts"
MOST = 100_000  # prompts
TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")  # GenEval's tasks
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")  # GenEval's
RELATIONS = ("left of", "right of", "above", "below")  # GenEval's
QUESTIONS = "dpg_bench.csv"
COLUMNS = ("item_id", "proposition_id", "dependency", "question_natural_language")  # of it, those that are read
REMEDY = "Fix it, or fetch it again."


@dataclass(frozen=True)
class Download:
    """A published file: its address, size in bytes and MD5."""

    address: str
    size: int
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.address.rsplit("/", 1)[1]


COCO_2017 = Download("http://images.cocodataset.org/annotations/annotations_trainval2017.zip", 252_907_541,
                     "f4bbac642086de4f52a3fdda2de5fa2c")
COCO_MEMBER = "annotations/captions_val2017.json"


@dataclass(frozen=True)
class Question:
    """A yes/no question of DPG-Bench about an image.

    ``needs``: numbers of questions that must be answered yes first.
    """

    number: int
    text: str
    needs: tuple[int, ...]


@dataclass(frozen=True)
class PromptList:
    """Prompts in order, and what their benchmark checks in each image.

    ``kind``: ``text``, ``table``, ``geneval``, ``coco`` or ``dpg``. ``tasks``: lines of GenEval's file. ``questions``: DPG-Bench's, per
    prompt, if its table is next to the prompts. ``files``: the name of each prompt's image, with or without its ending, if the list has
    them; ``categories``: the category of each prompt.
    """

    kind: str
    source: str
    texts: tuple[str, ...]
    tasks: tuple[Mapping[str, Any], ...] = ()
    questions: tuple[tuple[Question, ...], ...] = ()
    files: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


def packaged(name: str) -> tuple[str, ...]:
    """Return the texts of a list of the package."""
    return tuple((PACKAGED / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def prompt_list(name_or_path: str) -> PromptList:
    """Return a list of the package by name, or read a path. Raises BadPlan or UnknownName."""
    names = sorted(file.stem for file in PACKAGED.glob("*.txt"))
    if name_or_path in names:
        return _read(PACKAGED / f"{name_or_path}.txt", 0, 0)
    path = Path(name_or_path)
    try:
        status = path.stat()
    except (OSError, ValueError):
        if path.suffix or len(path.parts) > 1:
            raise BadPlan(f"There are no prompts at {shown(name_or_path)}.", remedy=f"Name a file, a folder, or: {', '.join(names)}."
                          ) from None
        raise unknown("list of prompts", name_or_path, names) from None
    return _read(path, status.st_size, status.st_mtime_ns)


@cache
def _read(path: Path, size: int, changed: int) -> PromptList:
    """Read the list at a path; cached until its size or modification time changes."""
    if path.is_dir():
        return _dpg(path)
    if path.suffix == ".parquet":
        return _table(path, "")
    if path.suffix == ".zip":
        return _coco(path, _captions_2017(path))
    text = text_of(path, BadPlan)
    if path.suffix in TABLES:
        return _table(path, text)
    if path.suffix == ".jsonl" and re.match(r'\s*\{(?!.*"(tag|include)")', text):  # the first line
        return _table(path, text)
    if path.suffix == ".json" and '"annotations"' not in text and re.match(r'\s*(\[\s*\{|\{\s*"[^"]*"\s*:\s*\{)', text):  # rows
        return _table(path, text)
    if path.suffix not in (".json", ".jsonl") and is_table(text):
        raise BadPlan(f"{path} is a table, by its first line.", remedy="Name it .tsv, so that its column of prompts is read.")
    reader: Callable[[Path, str], PromptList] = {".jsonl": _geneval, ".json": _coco}.get(path.suffix, _plain)
    return reader(path, text)


def _table(path: Path, text: str) -> PromptList:
    table: PromptTable = read_table(path, text)
    located = ((f"{path}: row {number}", " ".join(prompt.split())) for number, prompt in enumerate(table.prompts, 1))
    return PromptList("table", str(path), _checked(path, located), files=table.files, categories=table.categories)


def _checked(path: Path, located: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Strip prompts, given with their locations. Raises BadPlan for empty or long ones, or a bad count."""
    prompts = []
    for place, text in located:
        if not text.strip():
            raise BadPlan(f"{place} is an empty prompt.", remedy="Remove it, or describe the image.")
        if len(text) > LONGEST:
            raise BadPlan(f"{place} has {len(text)} characters; a prompt has at most {LONGEST}.", remedy="Shorten it.")
        prompts.append(text.strip())
    if not 0 < len(prompts) <= MOST:
        raise BadPlan(f"{path} has {count(len(prompts), 'prompt')}; 1 to {MOST} are expected.", remedy=REMEDY)
    return tuple(prompts)


def _plain(path: Path, text: str) -> PromptList:
    return PromptList("text", str(path), _checked(path, ((f"{path}:{line}", prompt) for line, prompt in enumerate(text.splitlines(), 1))))


# -- GenEval -----------------------------------------------------------------------------------------------------------------
def _one_of(options: Iterable[str]) -> Any:
    return Annotated[str, Field(pattern=f"^({'|'.join(options)})$")]


_STRICT = ConfigDict(strict=True)
_FIELDS: dict[str, Any] = {  # one of them is a keyword of Python
    "class": (str, ...), "count": (Annotated[int, Field(ge=1, le=100)], ...), "color": (_one_of(COLOURS), None),
    "position": (GenericAlias(tuple, (_one_of(RELATIONS), NonNegativeInt)), None),
}
_CLAUSE = create_model("_CLAUSE", __config__=_STRICT, **_FIELDS)
_CLAUSES: Any = GenericAlias(list, (_CLAUSE,))
_TASK = create_model("_TASK", __config__=_STRICT, tag=(_one_of(TAGS), ...), prompt=(str, ...), include=(_CLAUSES, Field(min_length=1)),
                     exclude=(_CLAUSES, ()))


def _geneval(path: Path, text: str) -> PromptList:
    tasks = [_task(f"{path}:{line}", entry) for line, entry in enumerate(text.splitlines(), 1)]
    prompts = _checked(path, ((f"{path}:{line}", str(task["prompt"])) for line, task in enumerate(tasks, 1)))
    return PromptList("geneval", str(path), prompts, tasks=tuple(tasks))


def _task(place: str, entry: str) -> dict[str, Any]:
    """Check a line of GenEval's file. A clause may refer only to an earlier one."""
    with validating(place, BadPlan, REMEDY):
        task: dict[str, Any] = from_json(entry, allow_inf_nan=False)
        _TASK.model_validate_json(entry)
    for i, clause in enumerate(task["include"]):
        if clause.get("position", ["", -1])[1] >= i:
            problem = f"include.{i}.position = {shown(clause['position'])}, which refers to a clause that is not before it"
            raise BadPlan(f"{place} has {problem}.", remedy=REMEDY)
    return task


# -- COCO --------------------------------------------------------------------------------------------------------------------
_CAPTION = create_model("_CAPTION", __config__=_STRICT, image_id=(int, ...), id=(int, ...), caption=(str, ...))
_CAPTION_LIST: Any = GenericAlias(list, (_CAPTION,))
_CAPTIONS: Any = create_model("_CAPTIONS", annotations=(_CAPTION_LIST, Field(min_length=1)))


def _captions_2017(path: Path) -> str:
    """Return the text of COCO's captions of 2017. Raises BadPlan for another file than the published one."""
    remedy = f"Fetch it again: curl -LO {COCO_2017.address}"
    try:
        if (size := path.stat().st_size) != COCO_2017.size:
            raise BadPlan(f"{path} has {size} bytes, not the {COCO_2017.size} of {COCO_2017.name}.", remedy=remedy)
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != COCO_2017.md5:
            raise BadPlan(f"{path} has the MD5 {md5}, not {COCO_2017.md5} of {COCO_2017.name}.", remedy=remedy)
        with ZipFile(path) as archive:
            return archive.read(COCO_MEMBER).decode()
    except OSError as error:
        raise BadPlan(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error


def _coco(path: Path, text: str) -> PromptList:
    with validating(str(path), BadPlan, "Use the file captions_val2014.json of COCO's annotations."):
        captions = _CAPTIONS.model_validate_json(text).annotations
    first = {caption.image_id: caption.caption for caption in sorted(captions, key=lambda caption: -caption.id)}
    located = [(f"{path}: the caption of image {image}", " ".join(first[image].split())) for image in sorted(first)]
    return PromptList("coco", str(path), _checked(path, located))


# -- DPG-Bench ---------------------------------------------------------------------------------------------------------------
def _dpg(path: Path) -> PromptList:
    folder = path / "prompts" if (path / "prompts").is_dir() else path
    files = sorted(folder.glob("*.txt"), key=lambda file: (not file.stem.isdigit(), len(file.stem), file.stem))
    texts = _checked(folder, ((str(file), " ".join(text_of(file, BadPlan).split())) for file in files[: MOST + 1]))
    table = next((place for place in (folder.parent / QUESTIONS, folder / QUESTIONS) if place.is_file()), None)
    if table is None:
        return PromptList("dpg", str(path), texts, files=tuple(file.stem for file in files))
    questions = _asked(table)
    if lacking := [file.stem for file in files if file.stem not in questions]:
        raise BadPlan(f"{table} has no question about the prompt {shown(lacking[0])}.", remedy=REMEDY)
    return PromptList("dpg", str(path), texts, questions=tuple(questions[file.stem] for file in files),
                      files=tuple(file.stem for file in files))


def _asked(table: Path) -> dict[str, tuple[Question, ...]]:
    """Return the questions of a table by prompt name. As in the authors' script, the first row is skipped."""
    by_item: dict[str, dict[int, Question]] = {}
    for place, row in islice(_rows(table), 1, None):
        numbers = [row["proposition_id"], *row["dependency"].split(",")]
        if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 10 for part in numbers):
            raise BadPlan(f"{place} has the proposition {shown(numbers[0])} that depends on {shown(row['dependency'])}; whole numbers are "
                          "expected.", remedy=REMEDY)
        own, *needs = map(int, numbers)
        question = Question(own, row["question_natural_language"].strip(), tuple(need for need in needs if need))
        by_item.setdefault(row["item_id"].strip(), {})[own] = question
    return {item: tuple(questions.values()) for item, questions in by_item.items()}


def _rows(table: Path) -> Iterator[tuple[str, dict[str, str]]]:
    lines = csv.DictReader(io.StringIO(text_of(table, BadPlan), newline=""))
    try:
        if lacking := set(COLUMNS) - set(lines.fieldnames or ()):
            raise BadPlan(f"{table} has no column {min(lacking)!r}.", remedy=f"Use the {QUESTIONS} of DPG-Bench.")
        for row in lines:
            if any(row[name] is None for name in COLUMNS):
                raise BadPlan(f"{table}:{lines.line_num} has fewer columns than the first line.", remedy=REMEDY)
            yield f"{table}:{lines.line_num}", row
    except csv.Error as error:
        raise BadPlan(f"{table}:{lines.line_num} is not a table row: {error}.", remedy=REMEDY) from error
