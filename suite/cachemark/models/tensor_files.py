"""Reading of one weights file by its content, safetensors or the zip that ``torch.save`` writes, without running anything in it."""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from ..core.edited import LFS
from ..core.errors import BadCheckpoint, out_of_memory
from .entries import Entry, entries, some

ZIP = b"PK\x03\x04"  # first bytes of torch.save's files
HARMLESS: list[Any] = [  # objects next to the weights that run no code: arguments, and numbers of NumPy such as a loss
    argparse.Namespace, np.dtype, *{type(np.dtype(kind)) for kind in np.sctypeDict.values() if kind is not np.object_},
    *((np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def read_file(file: Path) -> list[Entry]:
    """Return every mapping of a file that holds tensors, memory-mapped. Raises BadCheckpoint."""
    with file.open("rb") as stream:
        head = stream.read(len(LFS))
    if head.startswith(ZIP):
        return _entries(unpickled(file), file)
    if head[8:9] == b"{":
        return [Entry("", _safetensors(file))]
    if head == LFS:
        raise BadCheckpoint(f"{str(file)!r} is a pointer of Git LFS, not the weights.", remedy="Run: git lfs pull")
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it is neither safetensors nor the zip that torch.save writes.",
                        remedy="Use a .safetensors or .pt file; save an older torch file again with a current torch.")


def unpickled(file: Path) -> Any:
    """Return the content of a file of ``torch.save``, read with ``weights_only``. Raises BadCheckpoint."""
    try:
        # A TorchScript archive causes a warning before it is rejected; the error is enough.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(HARMLESS), _named_for_torch(file) as path:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        if out_of_memory(error):
            raise
        # PyTorch's own text advises to switch the protection off, so it is not passed on.
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise BadCheckpoint(f"{str(file)!r} holds a Python object, {refused[1]}, that is not loaded because it could run code.",
                                remedy="Where you trust the file, save its tensors alone as safetensors.") from error
        raise BadCheckpoint(f"{str(file)!r} is not a checkpoint, or a damaged one: {type(error).__name__} while reading the zip.",
                            remedy="Fetch it again and compare its SHA-256.") from error


@contextmanager
def _named_for_torch(file: Path) -> Iterator[Path]:
    """Yield a path of the file that does not end in .safetensors, which torch.load judges by the name alone."""
    if file.suffix != ".safetensors":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "weights.pt")
        link.symlink_to(file.absolute())
        yield link


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        if out_of_memory(error):
            raise
        raise BadCheckpoint(f"{str(file)!r} is not a safetensors file, or a damaged one: {error}.",
                            remedy="Fetch it again and compare its SHA-256.") from error


def _entries(content: Any, file: Path) -> list[Entry]:
    """Return the mappings that hold tensors. Raises BadCheckpoint if there is none."""
    if listed := list(entries(content)):
        return listed
    holds = f"the entries {some(map(str, content))}" if isinstance(content, Mapping) and content else f"a {type(content).__name__}"
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it holds {holds} and no tensors by name.",
                        remedy="Save the state_dict of the model: a mapping from names to tensors.")
