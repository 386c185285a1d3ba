"""Discovery of vector files and their checks; no file is ignored."""

import functools
from dataclasses import dataclass
from pathlib import Path

from cachemark.core.errors import unknown

from .checks import Check, Kind, Vector
from .readers import FAMILIES

DEFAULT = Path(__file__).parent / "vectors"
KINDS = {f"{family}/{name}": kind for family, kinds in FAMILIES.items() for name, kind in kinds.items()}


@dataclass(frozen=True)
class Item:
    """One test: a file and a check, or the tensors that the file lacks for it."""

    label: str
    path: Path
    kind: Kind
    check: Check
    lacking: str


@functools.cache
def find(folder: Path) -> list[Item]:
    """Return all checks of ``<family>/<anything>_<kind>.safetensors[.xz]``; at least one item. Folders of families may be links.

    Raises where a file cannot be checked. The kind follows the first underscore: ``golden_small_vq`` is of kind ``small_vq``.
    """
    paths = {*folder.rglob("*.safetensors*"), *folder.glob("*/*.safetensors*")}
    files = sorted({path.with_name(path.name.removesuffix(".xz")) for path in paths if path.name.endswith((".safetensors", ".xz"))})
    if not files:
        raise ValueError(f"No vectors under {str(folder)!r}: expected <family>/<anything>_<kind>.safetensors with a .json beside it.")
    return [item for file in files for item in _items(file, "-".join(file.relative_to(folder).with_suffix("").parts))]


def _items(path: Path, label: str) -> list[Item]:
    name = f"{path.parent.name}/{path.stem.partition('_')[2]}"
    if name not in KINDS:
        raise unknown("kind of vector", name, KINDS)
    names = Vector.names_of(path)
    checks = KINDS[name].checks_of(names)
    lacking = {check.name: check.lacking(names) for check in checks}
    if all(lacking.values()):
        raise ValueError(f"{path}: no check can be run, it holds none of what they need: {lacking}")
    return [Item(f"{label}-{check.name}", path, KINDS[name], check, ", ".join(lacking[check.name])) for check in checks]
