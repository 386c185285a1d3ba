"""Discovery of vector files and their checks; no file is ignored."""

import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from cachemark.core.errors import unknown

from .checks import Check, Kind, Vector, content
from .readers import FAMILIES

DEFAULT = Path(__file__).parent / "vectors"
NOTHING = "none"  # label of the one item of a folder without vectors


@dataclass(frozen=True)
class Item:
    """One test: a file and a check, or a ``problem`` (fails) or ``lacking`` tensors (skips)."""

    label: str
    path: Path
    kind: Kind | None = None
    check: Check | None = None
    problem: str = ""
    lacking: str = ""


@functools.cache
def find(folder: Path) -> list[Item]:
    """Return all checks of ``<family>/<anything>_<kind>.safetensors[.xz]``; at least one item. Folders of families may be links."""
    paths = {*folder.rglob("*.safetensors*"), *folder.glob("*/*.safetensors*")}
    files = sorted({path.with_name(path.name.removesuffix(".xz")) for path in paths if path.name.endswith((".safetensors", ".xz"))})
    if not files:
        text = f"No vectors under {str(folder)!r}: expected <family>/<anything>_<kind>.safetensors with a .json of the same name."
        return [Item(NOTHING, folder, problem=text)]
    return [item for file in files for item in _items(file, folder)]


def kind_of(path: Path) -> str:
    """Return the part after the first underscore: ``golden_small_vq`` is of kind ``small_vq``."""
    return path.stem.partition("_")[2]


def _items(path: Path, folder: Path) -> list[Item]:
    inside = path.relative_to(folder).with_suffix("")
    label = "-".join(inside.parts)
    try:
        kind = _kind(path, inside)
        names = _names(path)
    except ValueError as error:
        return [Item(label, path, problem=f"{path}: {error}")]
    checks = kind.checks_of(names)
    lacking = {check.name: check.lacking(names) for check in checks}
    if all(lacking.values()):
        return [Item(label, path, problem=f"{path}: no check can be run, it holds none of what they need: {lacking}")]
    return [Item(f"{label}-{check.name}", path, kind, check, lacking=", ".join(lacking[check.name])) for check in checks]


def _kind(path: Path, inside: Path) -> Kind:
    if len(inside.parts) != 2:
        raise ValueError("vectors lie in a folder named as their family, <family>/<anything>_<kind>.safetensors")
    family = inside.parts[0]
    if family not in FAMILIES:
        raise ValueError(str(unknown("family", family, FAMILIES)))
    if kind_of(path) not in FAMILIES[family]:
        raise ValueError(f"{unknown(f'kind of {family} vector', kind_of(path), FAMILIES[family])} It follows the first underscore.")
    return FAMILIES[family][kind_of(path)]


def _names(path: Path) -> set[str]:
    """Return the names that checks may need. Raises ValueError if a file cannot be read."""
    beside = path.with_suffix(".json")
    try:
        facts = json.loads(beside.read_text())
        return Vector(path, facts, load(content(path))).names
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its configuration {beside.name} cannot be read: {error}") from None
    except (SafetensorError, lzma.LZMAError) as error:
        raise ValueError(f"cannot be read: {error}") from None
