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
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.edited import LFS
from ..core.errors import BadCheckpoint, out_of_memory
from ..core.files import is_readable, read_json

M = TypeVar("M", bound=nn.Module)

WRAPPERS = ("model", "module", "state_dict")
EXTRAS = ("freqs_cis", "*.freqs_cis", "*.k_cache", "*.v_cache")  # buffers that reference code saved by accident
DRAWS = ("normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_")  # of tensors and of torch.nn.init
INDEX = ".index.json"  # of files that together contain a model
PUBLISHED = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")  # in a folder
ZIP = b"PK\x03\x04"  # first bytes of torch.save's files
PIXELS_IN_NAME = re.compile(r"[_-](256|384|512|768|1024)$")
UNSETTLED = 2_000_000_000  # ns after a change in which another one may leave the file's time as it is
HASHED: dict[tuple[str, int, int], str] = {}  # SHA-256 of files by path, size and time of the last change
SHOWN = 3  # most names in an error; of more, only the number is printed


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


def _digest(file: Path) -> str:
    status = file.stat()
    key = str(file.resolve()), status.st_size, status.st_mtime_ns
    if key in HASHED:
        return HASHED[key]
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if time.time_ns() - status.st_mtime_ns > UNSETTLED:
        HASHED[key] = digest
    return digest


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of weights as hex digits; for several files, one of all names and digests."""
    return combined(digests(path))


def combined(hashes: Mapping[Path, str]) -> str:
    """Return one SHA-256 for the results of :func:`digests`."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(f"{file.name} {digest}\n" for file, digest in hashes.items()).encode()).hexdigest()


def parts(path: str | Path) -> list[Path]:
    """Return the files of weights: the file at ``path``, the shards of an index, or a folder's files.

    A folder must contain one of the ``PUBLISHED`` names. Raises BadCheckpoint if a file is missing.
    """
    source = Path(path)
    if os.path.isdir(source):  # which has every attribute
        present = [source / name for name in PUBLISHED if (source / name).is_file()]
        if not present:
            raise BadCheckpoint(f"{str(path)!r} holds no weights: none of {', '.join(PUBLISHED)}.",
                                remedy="Use the folder of one model as it was published, or the path of its weights file.")
        source = present[0]
    if not is_readable(source):
        raise _unreadable(source)
    if not source.name.endswith(INDEX):
        return [source]
    try:
        shards = [PurePosixPath(shard) for shard in sorted(set(read_json(source)["weight_map"].values()))]
        if any(shard.is_absolute() or ".." in shard.parts or not shard.parts for shard in shards):
            raise ValueError("a file in another folder")
        files = [source.parent / shard for shard in shards]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{str(source)!r} is not an index of weights: it has no readable weight_map.",
                            remedy="Fetch it again.") from error
    if not files:
        raise BadCheckpoint(f"{str(source)!r} names no file that holds weights.", remedy="Fetch it again.")
    if absent := [file.name for file in files if not is_readable(file)]:
        raise BadCheckpoint(f"{len(absent)} of the {len(files)} files that {str(source)!r} names are missing ({_some(absent)}).",
                            remedy="Fetch the rest of the model into the same folder.")
    return files


def read(path: str | Path, *, wrappers: Sequence[str] = WRAPPERS) -> dict[str, Tensor]:
    """Return the tensors of a weights file, or of all :func:`parts`, by name, memory-mapped.

    A pickle is read with ``weights_only``. Training code stores weights next to an optimizer and arguments: the first of ``wrappers``
    that holds tensors is used, else the top level. Raises BadCheckpoint.
    """
    return {name: tensor for file in parts(path) for name, tensor in _read(file, wrappers).items()}


def trained_pixels(path: str | Path) -> tuple[int, str]:
    """Return the side of the training images and the source of that number; (0, "") if unknown.

    It is read from training arguments in the file, else from the end of its name (``c2i_B_384.pt``) or its folder's.
    """
    first = parts(path)[0]
    with first.open("rb") as stream:
        content = _unpickle(first) if stream.read(len(ZIP)) == ZIP else None
    arguments = content.get("args") if isinstance(content, Mapping) else None
    arguments = vars(arguments) if isinstance(arguments, argparse.Namespace) else arguments
    if isinstance(arguments, Mapping) and re.fullmatch("[0-9]{1,5}", argument := str(arguments.get("image_size", ""))):
        return int(argument), "its training arguments"
    source = Path(path).absolute()
    names = [source.name] if source.is_dir() else [source.stem, source.parent.name]
    match = next(filter(None, map(PIXELS_IN_NAME.search, names)), None)
    return (int(match[1]), "its name") if match else (0, "")


def _read(file: Path, wrappers: Sequence[str]) -> dict[str, Tensor]:
    with file.open("rb") as stream:
        head = stream.read(len(LFS))
    if head.startswith(ZIP):
        return _unwrap(_unpickle(file), file, wrappers)
    if head[8:9] == b"{":
        return _safetensors(file)
    if head == LFS:
        raise BadCheckpoint(f"{str(file)!r} is a pointer of Git LFS, not the weights.", remedy="Run: git lfs pull")
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it is neither safetensors nor the zip that torch.save writes.",
                        remedy="Use a .safetensors or .pt file; save an older torch file again with a current torch.")


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

    Every tensor of the module must be in the file with its shape. Every tensor of the file, under the name that ``rename`` returns, must
    be in the module, except ``EXTRAS`` and names that match ``ignore`` (as in ``fnmatch``). ``dtype`` converts floating-point tensors;
    None keeps the file's. Changing a weight later never changes the file. Raises BadCheckpoint with the first names that do not fit.
    """
    module, present = fitted(factory, path, ignore=ignore, wrappers=wrappers, rename=rename)
    for name in present:  # in place, so that each source can go as soon as its copy is made
        present[name] = present[name].to(device, dtype if present[name].is_floating_point() else None)
    module.load_state_dict(present, assign=True)
    unset = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    assert not unset, f"{type(module).__name__} must compute {unset} on first use: it is in no checkpoint"
    return module.eval().requires_grad_(False)


def fitted(
    factory: Callable[[], M], path: str | Path, *, ignore: Sequence[str] = (), wrappers: Sequence[str] = WRAPPERS,
    rename: Callable[[str], str] = str,
) -> tuple[M, dict[str, Tensor]]:
    """Return the meta-device module and its mapped tensors by name. Raises the errors of :func:`load`."""
    with torch.device("meta"), NoDraws():
        module = factory()
    expected = module.state_dict()
    patterns = (*EXTRAS, *ignore)
    tensors = read(path, wrappers=wrappers)
    named = {name: rename(name) for name in tensors}
    passed = [name for name, own in named.items() if own not in expected and any(fnmatchcase(own, p) for p in patterns)]
    present = {own: tensors[name] for name, own in named.items() if name not in passed}
    _compare(expected, present, f"{str(path)!r} does not fit {type(module).__name__}")
    return module, present


def _unreadable(path: Path, reason: str = "") -> BadCheckpoint:
    return BadCheckpoint(f"{str(path)!r} is not a file that can be read{reason}.",
                         remedy="Name a .safetensors or .pt file; `cachemark weights fetch` downloads published ones.")


def _unpickle(file: Path) -> Any:
    try:
        # A TorchScript archive causes a warning before it is rejected; the error is enough.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        if out_of_memory(error):
            raise
        # PyTorch's own text advises to switch the protection off, so it is not passed on.
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise BadCheckpoint(f"{str(file)!r} holds a Python object, {refused[1]}, that is not loaded because it could run code.",
                                remedy="Where you trust the file, save its tensors alone as safetensors.") from error
        raise BadCheckpoint(f"{str(file)!r} is not a checkpoint, or a damaged one: {type(error).__name__} while reading the zip.",
                            remedy="Fetch it again and compare its SHA-256.") from error


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        if out_of_memory(error):
            raise
        raise BadCheckpoint(f"{str(file)!r} is not a safetensors file, or a damaged one: {error}.",
                            remedy="Fetch it again and compare its SHA-256.") from error


def _unwrap(content: Any, file: Path, wrappers: Sequence[str]) -> dict[str, Tensor]:
    """Return the first wrapped mapping that holds tensors, else the tensors at the top level."""
    top = content if isinstance(content, Mapping) else {}
    for candidate in (*(top.get(name) for name in wrappers), top):
        present = candidate if isinstance(candidate, Mapping) else {}
        tensors = {str(name): value for name, value in present.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
    holds = f"the entries {_some(map(str, top))}" if top else f"a {type(content).__name__}"
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it holds {holds} and no tensors by name.",
                        remedy=f"Tensors are looked for under {', '.join(wrappers)} and at the top level.")


def _compare(expected: Mapping[str, Tensor], present: Mapping[str, Tensor], title: str) -> None:
    missing = [name for name in expected if name not in present]
    unexpected = [name for name in present if name not in expected]
    common = {name: (present[name], tensor) for name, tensor in expected.items() if name in present}
    shapes = [f"{name} {_shape(own)} != {_shape(tensor)}" for name, (own, tensor) in common.items() if own.shape != tensor.shape]
    numbers = [f"{name} {str(own.dtype).removeprefix('torch.')}" for name, (own, tensor) in common.items() if not _fits(own, tensor)]
    kinds = {f"of {len(expected)} tensors missing": missing, "unexpected": unexpected, "of another shape": shapes,
             "of another kind of number": numbers}
    faults = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
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


def _some(names: Iterable[str]) -> str:
    """Return the first few names, with an ellipsis if there are more."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (", …" if len(listed) > SHOWN else "")
