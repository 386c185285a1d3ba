"""Pretrained networks in local folders, read by Hugging Face's transformers, an extra of this package.

Nothing is downloaded; errors give the command to get a missing file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .extractor import DIGITS

T = TypeVar("T")


def toolkit() -> Any:
    """Return the module transformers, which also needs torchvision. Raises Unsupported."""
    try:
        import torchvision  # noqa: F401
        import transformers
    except (ImportError, RuntimeError) as error:  # the latter from a torchvision that was built for another torch
        missing = (getattr(error, "name", None) or "a torchvision that fits this torch").partition(".")[0]
        raise Unsupported(f"not measured: needs {missing}, get it with: pip install 'cachemark[clip]'") from error
    return transformers


def folder_identity(folder: str, needed: Sequence[str], more: Sequence[str], published: str) -> str:
    """Return a hash over the ``needed`` files of a folder and those of ``more`` that exist.

    Raises Unsupported, with the command to get the ``published`` model, if a file or a library is missing.
    """
    toolkit()
    missing = [name for name in needed if not is_readable(Path(folder) / name)]
    if missing:
        raise Unsupported(f"not measured: needs {', '.join(missing)} in {folder!r}, get it with: "
                          f"hf download {published} --local-dir {folder}")
    return files_identity([Path(folder) / name for name in (*needed, *more) if is_readable(Path(folder) / name)])


def files_identity(paths: Sequence[Path]) -> str:
    """Return the first digits of a SHA-256 over names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.name} {_hashed(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)}\n".encode())
    return total.hexdigest()[:DIGITS]


@cache
def _hashed(path: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file, cached by size and modification time."""
    return sha256(path)


def built(folder: str, what: str, build: Callable[[], T]) -> T:
    """Return the result of ``build``. Raises BadCheckpoint if it fails."""
    try:
        return build()
    except Exception as error:  # files of any origin: the readers may fail in any way
        raise BadCheckpoint(f"{folder!r} contains no readable {what}: {' '.join(str(error).split())[:300]}.",
                            remedy="Fetch the folder again.") from error
