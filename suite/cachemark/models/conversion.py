"""Conversion of published weights to sharded safetensors.

A folder of converted weights appears complete or not at all. Shards are written to a hidden folder next to it, each atomically
(:func:`cachemark.core.files.replacing`); a repeated conversion keeps finished shards. Tensors of one shard are mapped from the source at
a time and written in pieces, so the peak is one shard.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, CachemarkError, Infrastructure
from ..core.files import read_json, replacing
from . import checkpoints, prompts, text_features, trained_size
from .protocol import PublishedFile

SHARD = 1 << 30  # bytes of tensors in a shard, unless a tensor is larger
PIECE = 1 << 22  # bytes that are written at once
INDEX = f"model.safetensors{checkpoints.INDEX}"
PLAN = "conversion.json"  # what the hidden folder is becoming
SMALL = 1 << 26  # bytes of a file beside the weights that is copied; larger ones share their disk space where the system allows
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # as safetensors calls them


@dataclass(frozen=True)
class Contents:
    """Inventory of weights; ``passed`` are names that were ignored."""

    tensors: int
    parameters: int
    nbytes: int
    dtypes: tuple[str, ...]
    passed: tuple[str, ...]


def contents(file: PublishedFile, path: str | Path) -> Contents:
    """Return the inventory of the weights at ``path``. Raises BadCheckpoint unless they match the model."""
    _, present, passed = checkpoints.fitted(file.build, path, ignore=file.ignored, wrappers=file.wrappers, rename=file.rename)
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in present.values()}
    return Contents(len(present), sum(t.numel() for t in present.values()), sum(t.nbytes for t in present.values()),
                    tuple(sorted(kinds)), tuple(passed))


def convert(
    file: PublishedFile, source: str | Path, to: Path, *, pixels: int = 0, shard: int = SHARD,
    note: Callable[[int, int, bool], None] = lambda index, count, reused: None,
) -> None:
    """Write the weights at ``source``, and its text tokenizer or encoder, to the folder ``to``.

    A finished conversion of the same source is left as it is. ``pixels`` states the image size if the source does not. ``note(index,
    count, reused)`` is called per shard.

    Raises BadCheckpoint for weights of another model, CachemarkError if ``to`` is something else or another process is converting to it,
    Infrastructure if the disk is too small.
    """
    shards = _shards(file, source, shard)
    size = _size(file, source, pixels)
    if to.exists():
        if _made_of(to) != _stamp(source):
            raise CachemarkError(f"{str(to)!r} exists already, and was not converted from these weights.",
                                 remedy="Use a folder that does not exist yet, or delete that one.")
        return
    with _work(to) as folder:
        plan = {"source": _stamp(source), "shards": shards, "pixels": size}
        if not _same(folder, plan):
            _emptied(folder)
            _write(folder / PLAN, plan)
        _room(folder, source, sum(bytes_ for _, bytes_ in shards) - sum(f.stat().st_size for f in folder.glob("*.safetensors")))
        hashes = {}
        for index, (names, _) in enumerate(shards, 1):
            path = folder / f"model-{index:05}-of-{len(shards):05}.safetensors"
            reused = path.is_file()
            if not reused:
                _shard(path, _tensors(file, source, names))
            hashes[path.name] = checkpoints.sha256(path)
            note(index, len(shards), reused)
        _bring_readers(Path(source), folder)
        _finish(file, source, folder, [names for names, _ in shards], hashes, size)
        folder.rename(to)


def _size(file: PublishedFile, source: str | Path, pixels: int) -> int:
    """Return the image size of the weights. Raises BadCheckpoint if neither shapes nor metadata give it."""
    size = trained_size.check(file, source, pixels)
    if file.pixels and not size:
        raise BadCheckpoint(f"The image size of {str(source)!r} is unknown, and its shapes fit other sizes too.",
                            remedy=f"If it is {file.pixels} pixels, like the model's, state it: --pixels {file.pixels}.")
    return size


def _shards(file: PublishedFile, source: str | Path, limit: int) -> list[tuple[list[str], int]]:
    """Return the names and bytes of each shard, in the order of the model."""
    module, present, _ = checkpoints.fitted(file.build, source, ignore=file.ignored, wrappers=file.wrappers, rename=file.rename)
    shards: list[tuple[list[str], int]] = []
    for name in module.state_dict():
        nbytes = present[name].nbytes
        if not shards or shards[-1][1] + nbytes > limit:
            shards.append(([], 0))
        names, before = shards[-1]
        shards[-1] = ([*names, name], before + nbytes)
    return shards


def _tensors(file: PublishedFile, source: str | Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Map the source again and return these tensors, so that pages of earlier shards can be freed."""
    mapped = {file.rename(name): tensor for name, tensor in checkpoints.read(source, wrappers=file.wrappers).items()}
    return {name: mapped[name] for name in names}


# -- the folder that grows ---------------------------------------------------------------------------------------------
@contextmanager
def _work(to: Path) -> Iterator[Path]:
    """Yield the hidden folder that becomes ``to``, locked until the block or the process ends."""
    folder = to.parent / f".{to.name}.converting"
    if folder.is_symlink():  # what is in there is somebody else's, and would be emptied
        raise CachemarkError(f"{str(folder)!r} is a link, but the conversion writes there.", remedy="Remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CachemarkError(f"Another process is converting to {str(to)!r}.", remedy="Wait for it.") from None
        yield folder
    finally:
        os.close(lock)


def _stamp(source: str | Path) -> list[list[object]]:
    """Return name, size and modification time of each file of the source."""
    return [[file.name, (status := file.stat()).st_size, status.st_mtime_ns] for file in checkpoints.parts(source)]


def _made_of(folder: Path) -> object:
    """Return the stamp of the source that a folder was converted from; None for any other folder."""
    try:
        return read_json(folder / INDEX)["metadata"]["source"]
    except (ValueError, KeyError, TypeError):
        return None


def _same(folder: Path, plan: Mapping[str, object]) -> bool:
    """Return True if an earlier attempt had the same plan."""
    try:
        return bool(read_json(folder / PLAN) == json.loads(json.dumps(plan)))
    except ValueError:
        return False


def _emptied(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _room(folder: Path, source: str | Path, nbytes: int) -> None:
    if (free := shutil.disk_usage(folder).free) < nbytes:
        raise Infrastructure(f"Converting {str(source)!r} needs {nbytes / 1e9:.2f} GB more; the disk has {free / 1e9:.2f} GB left.",
                             remedy="Free some space, or give a folder on another disk.")


def _finish(
    file: PublishedFile, source: str | Path, folder: Path, shards: Sequence[Sequence[str]], hashes: Mapping[str, str], pixels: int
) -> None:
    """Write the index, delete working files, and verify the result."""
    metadata: dict[str, object] = {"total_size": sum(weights.stat().st_size for weights in folder.glob("*.safetensors")),
                                   "source": _stamp(source), "source_sha256": checkpoints.sha256(source), "sha256": dict(hashes)}
    if pixels:
        metadata[trained_size.STATED] = pixels
    weight_map = {name: shard for names, shard in zip(shards, hashes, strict=True) for name in names}
    _write(folder / INDEX, {"metadata": metadata, "weight_map": weight_map})
    (folder / PLAN).unlink()
    for partial in folder.glob(".*.part"):
        partial.unlink()  # of a try that was killed
    contents(file, folder)


def _write(path: Path, data: object) -> None:
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=1), encoding="utf-8")


def _bring_readers(source: Path, folder: Path) -> None:
    """Copy the text tokenizer and encoder to where the model looks for them."""
    home = source if source.is_dir() else source.parent
    for name in (prompts.FILE, text_features.ENCODER):
        files = [home / name] if (home / name).is_file() else sorted(f for f in (home / name).rglob("*") if f.is_file())
        for file in files:
            _copied(file, folder / file.relative_to(home))


def _copied(file: Path, to: Path) -> None:
    """Copy a file, or hard-link it if it is large and on the same disk."""
    to.unlink(missing_ok=True)  # of an earlier try
    to.parent.mkdir(parents=True, exist_ok=True)
    if file.stat().st_size > SMALL:
        with suppress(OSError):  # of another disk
            os.link(file.resolve(), to)
            return
    shutil.copyfile(file, to)


# -- a shard -----------------------------------------------------------------------------------------------------------
def _shard(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file: header length, header, then the bytes of each tensor."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with replacing(path) as part, part.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            for piece in _pieces(tensor):
                _put(piece, file)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor's numbers in order, in pieces; never copies a non-contiguous tensor whole."""
    if not tensor.is_contiguous() and tensor.size(0) > 1:
        for row in tensor:
            yield from _pieces(row)
    elif tensor.numel():
        yield from tensor.contiguous().flatten().split(max(PIECE // tensor.element_size(), 1))


def _put(piece: Tensor, file: IO[bytes]) -> None:
    file.write(piece.view(torch.uint8).numpy().tobytes())
