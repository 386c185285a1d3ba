"""Loader of published weights: executes nothing from a file and leaves no tensor at random values.

A file is recognized by its content: safetensors, or the zip that ``torch.save`` writes. Both are memory-mapped. A folder or an index of
shards, as Hugging Face publishes large models, is read as one. Modules are built on the meta device and take the mapped tensors, so the
peak is the file itself; a change of dtype or device adds the converted copy, tensor by tensor.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import BadCheckpoint
from ..core.files import is_readable, read_json
from .entries import WRAPPERS, Entry, choose, some
from .hub import PUBLISHED
from .tensor_files import ZIP, read_file, unpickled

M = TypeVar("M", bound=nn.Module)

EXTRAS = ("freqs_cis", "*.freqs_cis", "*.k_cache", "*.v_cache", "*.inv_freq", "*attn_mask", "causal_mask")  # buffers saved by accident
DRAWS = ("normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_")  # of tensors and of torch.nn.init
INDEX = ".index.json"  # of files that together contain a model
PIXELS_IN_NAME = re.compile(r"[_-](256|384|512|768|1024)$")
UNSETTLED = 2_000_000_000  # ns after a change in which another one may leave the file's time as it is
HASHED: dict[tuple[str, int, int], str] = {}  # SHA-256 of files by path, size and time of the last change
FOREIGN = {  # folders of training libraries: a file in them, and how their weights are exported
    "zero_to_fp32.py": "It is a checkpoint of DeepSpeed. Export it: python zero_to_fp32.py . model, in that folder.",
    "*_model_states.pt": "It is a checkpoint of DeepSpeed. Export it with its zero_to_fp32.py.",
    ".metadata": "It is a sharded checkpoint of torch (FSDP). Export it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
                 "FOLDER model.pt",
    "adapter_config.json": "It is a LoRA adapter. Merge it into its model (merge_and_unload of peft) and save the result.",
    "*-00001-of-*": "Its shards have no index. Fetch the file *.index.json too.",
}


class NoDraws(TorchFunctionMode):
    """Skips random initial values, which only take time, and on the meta device import PyTorch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def digests(path: str | Path) -> dict[Path, str]:
    """Return the SHA-256 of each file of the weights at ``path``, as hex digits.

    A file is read once per path, size and time of its last change, which ``HASHED`` hands on to the processes of trials."""
    hashes = {}
    for file in parts(path):
        try:
            hashes[file] = _digest(file)
        except OSError as error:
            raise _unreadable(file, f": {error.strerror}") from error
    return hashes


def _version(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file.resolve()), status.st_size, status.st_mtime_ns


def _digest(file: Path) -> str:
    if (key := _version(file)) in HASHED:
        return HASHED[key]
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if time.time_ns() - key[2] > UNSETTLED:
        HASHED[key] = digest
    return digest


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of weights as hex digits; for several files, one of all names and digests."""
    return combined(digests(path))


def known_sha256(path: str | Path) -> str:
    """Return :func:`sha256` of weights that were read before and have not changed since, else an empty text."""
    try:
        hashes = {file: HASHED.get(_version(file), "") for file in parts(path)}
    except (OSError, BadCheckpoint):
        return ""
    return combined(hashes) if all(hashes.values()) else ""


def combined(hashes: Mapping[Path, str]) -> str:
    """Return one SHA-256 for the results of :func:`digests`."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(f"{file.name} {digest}\n" for file, digest in hashes.items()).encode()).hexdigest()


def parts(path: str | Path) -> list[Path]:
    """Return the files of weights: the file at ``path``, the shards of an index, or a folder's files.

    A folder must contain one of the ``PUBLISHED`` names. An entry after a # is left out. Raises BadCheckpoint if a file is missing.
    """
    source, _ = file_and_entry(path)
    if os.path.isdir(source):  # which has every attribute
        present = _published(source)
        if not present:
            foreign = (remedy for pattern, remedy in FOREIGN.items() if any(source.glob(pattern)))
            raise BadCheckpoint(f"{str(path)!r} holds no weights: none of {', '.join(PUBLISHED)}.", remedy=next(
                foreign, "Use the folder of one model as it was published, or the path of its weights file."))
        source = present[0]
    if not is_readable(source):
        raise _unreadable(source)
    if not source.name.endswith(INDEX):
        return [source]
    files = list(_index(source))
    if absent := [file.name for file in files if not is_readable(file)]:
        raise BadCheckpoint(f"{len(absent)} of the {len(files)} files that {str(source)!r} names are missing ({some(absent)}).",
                            remedy="Fetch the rest of the model into the same folder.")
    return files


def _published(folder: Path) -> list[Path]:
    """Return the files of a folder that each hold or list a whole model, the one that is used first."""
    return [folder / name for name in PUBLISHED if (folder / name).is_file()]


def _index(source: Path) -> dict[Path, set[str]]:
    """Return the names of tensors that an index assigns to each of its files, in order.

    Raises BadCheckpoint.
    """
    try:
        places = {str(name): PurePosixPath(shard) for name, shard in read_json(source)["weight_map"].items()}
        shards = sorted(set(places.values()), key=str)
        if any(shard.is_absolute() or ".." in shard.parts or not shard.parts for shard in shards):
            raise ValueError("a file in another folder")
        files = {source.parent / shard: {name for name, place in places.items() if place == shard} for shard in shards}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{str(source)!r} is not an index of weights: it has no readable weight_map.",
                            remedy="Fetch it again.") from error
    if not files:
        raise BadCheckpoint(f"{str(source)!r} names no file that holds weights.", remedy="Fetch it again.")
    return files


def file_and_entry(path: str | Path) -> tuple[Path, str]:
    """Split ``file.pth#ema`` into the file and the entry of it; a path that exists as it is written names no entry."""
    file, mark, entry = str(path).rpartition("#")
    return (Path(file), entry) if mark and not os.path.lexists(path) else (Path(path), "")


def read(path: str | Path) -> tuple[list[Entry], tuple[str, ...]]:
    """Return every mapping of a weights file that holds tensors, memory-mapped, and notes for people.

    The files of an index are one entry, with the tensors that it assigns to each of them. A pickle is read with ``weights_only``. Raises
    BadCheckpoint.
    """
    source, _ = file_and_entry(path)
    notes: list[str] = []
    if source.is_dir() and (copies := _published(source))[1:]:
        notes = [f"{str(source)!r} holds several copies of the model: {copies[0].name} is used, not "
                 f"{some(file.name for file in copies[1:])}."]
    files = parts(source)
    index = (_published(source) if source.is_dir() else [source])[0]
    if not index.name.endswith(INDEX):
        return read_file(files[0]), tuple(notes)
    assigned, tensors, others = _index(index), dict[str, Tensor](), list[str]()
    for file in files:
        own = {name: tensor for entry in read_file(file) for name, tensor in entry.tensors.items()}
        if absent := assigned[file] - own.keys():
            raise BadCheckpoint(f"{str(index)!r} is stale: {file.name} lacks {len(absent)} of the tensors that it assigns to that file "
                                f"({some(sorted(absent))}).", remedy="Fetch the index and its files again, all of one revision.")
        tensors |= {name: own[name] for name in assigned[file]}
        others += own.keys() - assigned[file]
    if others:
        notes.append(f"{str(index)!r} does not assign {len(others)} tensors to the files that hold them ({some(sorted(others))}); "
                     "these copies are left out.")
    return [Entry("", tensors)], tuple(notes)


def trained_pixels(path: str | Path) -> tuple[int, str]:
    """Return the side of the training images and the source of that number; (0, "") if unknown.

    It is read from training arguments in the file, else from the end of its name (``c2i_B_384.pt``) or its folder's.
    """
    path, _ = file_and_entry(path)
    first = parts(path)[0]
    with first.open("rb") as stream:
        content = unpickled(first) if stream.read(len(ZIP)) == ZIP else None
    arguments = content.get("args") if isinstance(content, Mapping) else None
    arguments = vars(arguments) if isinstance(arguments, argparse.Namespace) else arguments
    if isinstance(arguments, Mapping) and re.fullmatch("[0-9]{1,5}", argument := str(arguments.get("image_size", ""))):
        return int(argument), "its training arguments"
    source = path.absolute()
    names = [source.name] if source.is_dir() else [source.stem, source.parent.name]
    match = next(filter(None, map(PIXELS_IN_NAME.search, names)), None)
    return (int(match[1]), "its name") if match else (0, "")


class Fitted(NamedTuple, Generic[M]):
    """A module on the meta device and the mapped ``tensors`` of a file that fill it, by name.

    ``entry``: the one that was chosen if the file holds several that fit, else empty. ``notes`` tell people what was chosen or left out.
    """

    module: M
    tensors: dict[str, Tensor]
    entry: str
    notes: tuple[str, ...]


def load(
    factory: Callable[[], M],
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    ignore: Sequence[str] = (),
    wrappers: Sequence[str] = WRAPPERS,
    rename: Callable[[str], str] = str,
) -> M:
    """Load the weights at ``path`` into a new module, in eval mode and without gradients.

    ``path`` may name an entry of the file, ``file.pth#ema``. Of several copies of the weights the first by ``wrappers`` is used, see
    :func:`~cachemark.models.entries.choose`. Every tensor of the module must be in it with its shape. Every tensor of it, under the name
    that ``rename`` returns, must be in the module, except ``EXTRAS`` and names that match ``ignore`` (as in ``fnmatch``). ``dtype``
    converts floating-point tensors; None keeps the file's. Changing a weight later never changes the file. Raises BadCheckpoint with the
    first names that do not fit.
    """
    module, present, _, _ = fitted(factory, path, ignore=ignore, wrappers=wrappers, rename=rename)
    for name in present:  # in place, so that each source can go as soon as its copy is made
        present[name] = present[name].to(device, dtype if present[name].is_floating_point() else None)
    module.load_state_dict(present, assign=True)
    unset = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    assert not unset, f"{type(module).__name__} must compute {unset} on first use: it is in no checkpoint"
    return module.eval().requires_grad_(False)


def fitted(
    factory: Callable[[], M], path: str | Path, *, ignore: Sequence[str] = (), wrappers: Sequence[str] = WRAPPERS,
    rename: Callable[[str], str] = str,
) -> Fitted[M]:
    """Return the module on the meta device, with its mapped tensors by name.

    Raises the errors of :func:`load`.
    """
    result = chosen(factory, path, ignore=ignore, wrappers=wrappers, rename=rename)
    try:
        _compare(result.module.state_dict(), result.tensors, f"{str(path)!r} does not fit {type(result.module).__name__}")
    except BadCheckpoint as error:
        raise BadCheckpoint(" ".join((error.message, *result.notes)), remedy=error.remedy) from None
    return result


def chosen(
    factory: Callable[[], M], path: str | Path, *, ignore: Sequence[str] = (), wrappers: Sequence[str] = WRAPPERS,
    rename: Callable[[str], str] = str,
) -> Fitted[M]:
    """Return what :func:`fitted` does, also if tensors are missing or of other shapes."""
    with torch.device("meta"), NoDraws():
        module = factory()
    expected = module.state_dict()
    patterns = (*EXTRAS, *ignore)
    (file, entry), (listed, notes) = file_and_entry(path), read(path)
    choice = choose(listed, expected, str(file), entry=entry, wrappers=wrappers, rename=rename)
    present = {name: tensor for name, tensor in choice.tensors.items()
               if name in expected or not any(fnmatchcase(name, pattern) for pattern in patterns)}
    return Fitted(module, present, choice.entry, (*notes, *choice.notes))


def _unreadable(path: Path, reason: str = "") -> BadCheckpoint:
    return BadCheckpoint(f"{str(path)!r} is not a file that can be read{reason}.",
                         remedy="Name a .safetensors or .pt file; `cachemark weights fetch MODEL` downloads published ones.")


def _compare(expected: Mapping[str, Tensor], present: Mapping[str, Tensor], title: str) -> None:
    missing = [name for name in expected if name not in present]
    unexpected = [name for name in present if name not in expected]
    common = {name: (present[name], tensor) for name, tensor in expected.items() if name in present}
    shapes = [f"{name} {_shape(own)} != {_shape(tensor)}" for name, (own, tensor) in common.items() if own.shape != tensor.shape]
    numbers = [f"{name} {str(own.dtype).removeprefix('torch.')}" for name, (own, tensor) in common.items() if not _fits(own, tensor)]
    kinds = {f"of {len(expected)} tensors missing": missing, "unexpected": unexpected, "of another shape": shapes,
             "of another kind of number": numbers}
    faults = [f"{len(names)} {kind} ({some(names)})" for kind, names in kinds.items() if names]
    if not faults:
        return
    if shapes:
        remedy = f"This is a checkpoint of another size: {shapes[0]} (file != model)."
    elif before := _stray(missing, unexpected):
        remedy = f"Its names start with {before!r}: save it without that prefix."
    else:
        remedy = "Use the weights file of this model."
    raise BadCheckpoint(f"{title}: {'; '.join(faults)}.", remedy=remedy)


def _stray(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return the prefix of the file's names if only it hides the first missing name; else ""."""
    if not missing:
        return ""
    end = "." + missing[0]
    return next((name.removesuffix(end) + "." for name in unexpected if name.endswith(end)), "")


def _fits(tensor: Tensor, expected: Tensor) -> bool:
    """Return True if both are floating point of two bytes or more, or both integers."""
    if expected.is_floating_point():
        return tensor.is_floating_point() and tensor.element_size() > 1
    return not (tensor.is_floating_point() or tensor.is_complex())


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
