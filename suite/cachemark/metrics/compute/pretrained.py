"""Networks of others that look at images: folders of this machine, read by Hugging Face's transformers, an extra of this package.

Nothing is fetched. What is missing is one sentence with how to get it, and what cannot be measured whole is not measured.
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
    """transformers, or Unsupported with how to get it and torchvision, which has the names of classes and its preparation of images."""
    try:
        import torchvision  # noqa: F401
        import transformers
    except (ImportError, RuntimeError) as error:  # the latter from a torchvision that was built for another torch
        lacking = (getattr(error, "name", None) or "a torchvision that fits this torch").partition(".")[0]
        raise Unsupported(f"not measured: needs {lacking}, get it with: pip install 'cachemark[clip]'") from error
    return transformers


def folder_identity(folder: str, needed: Sequence[str], more: Sequence[str], published: str) -> str:
    """The part of a case's identity that a network in a folder decides: the first digits of a SHA-256 over the files that are ``needed``
    and ``more`` of them, as far as they are there. Raises Unsupported, with how to get what is ``published``, where one is lacking or a
    library is not installed."""
    toolkit()
    lacking = [name for name in needed if not is_readable(Path(folder) / name)]
    if lacking:
        raise Unsupported(f"not measured: needs {', '.join(lacking)} in {folder!r}, get it with: "
                          f"hf download {published} --local-dir {folder}")
    return files_identity([Path(folder) / name for name in (*needed, *more) if is_readable(Path(folder) / name)])


def files_identity(paths: Sequence[Path]) -> str:
    """The first digits of a SHA-256 over the names of some files and what is in them."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.name} {_hashed(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)}\n".encode())
    return total.hexdigest()[:DIGITS]


@cache
def _hashed(path: Path, size: int, changed: int) -> str:
    """The SHA-256 of a file; read once as long as its size and the nanosecond of its last change stay the same."""
    return sha256(path)


def built(folder: str, what: str, build: Callable[[], T]) -> T:
    """The network that ``build`` makes of the files in a folder. Raises BadCheckpoint for files that do not fit together."""
    try:
        return build()
    except Exception as error:  # files of any origin: the readers may fail in any way
        raise BadCheckpoint(f"{folder!r} holds no {what} that can be read: {' '.join(str(error).split())[:300]}.",
                            remedy="Fetch the folder again.") from error
