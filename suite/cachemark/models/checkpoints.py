"""Published weights files into modules: nothing is executed from a file, and nothing is left at random values.

A file is recognised by its content: safetensors, or the zip that ``torch.save`` writes. Both are mapped into memory, not
read into it. A folder or an index, as Hugging Face publishes large models in several files, is read as one. Modules are built
on the meta device and take the mapped tensors as they are, so the peak is the file itself; a change of dtype or device adds
the converted copy, tensor by tensor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import BadCheckpoint
from ..core.files import is_readable

M = TypeVar("M", bound=nn.Module)

WRAPPERS = ("model", "module", "state_dict")
EXTRAS = ("freqs_cis", "*.freqs_cis", "*.k_cache", "*.v_cache")  # buffers that reference code saved by accident
DRAWS = ("normal_", "uniform_", "kaiming_uniform_", "kaiming_normal_")  # of tensors and of torch.nn.init
INDEX = ".index.json"  # of files that hold a model together
PUBLISHED = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")  # in a folder
SHOWN = 3  # names in an error before the text gives only their number


class _NoDraws(TorchFunctionMode):
    """Leaves out random initial values. On the meta device they have no effect, but the first one imports PyTorch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file as hex digits, read in pieces; of several files that of their names and digests."""
    digests = []
    for file in parts(path):
        try:
            with file.open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
        except OSError as error:
            raise _unreadable(file, f": {error.strerror}") from error
    if len(digests) == 1:
        return digests[0]
    named = "".join(f"{file.name} {digest}\n" for file, digest in zip(parts(path), digests, strict=True))
    return hashlib.sha256(named.encode()).hexdigest()


def parts(path: str | Path) -> list[Path]:
    """The files that hold the weights at ``path``: a file itself, the shards of an index, and of a folder what it holds under one of the
    ``PUBLISHED`` names. Raises BadCheckpoint where one is missing."""
    given = Path(path)
    if os.path.isdir(given):  # which answers of any name
        found = next((given / name for name in PUBLISHED if (given / name).is_file()), None)
        if found is None:
            raise BadCheckpoint(f"{str(path)!r} holds no weights: none of {', '.join(PUBLISHED)}.",
                                remedy="Give the folder of one model as it was published, or the path of its weights file.")
        given = found
    if not given.name.endswith(INDEX):
        return [_existing(given)]
    try:
        shards = sorted(set(json.loads(_existing(given).read_text(encoding="utf-8"))["weight_map"].values()))
        files = [given.parent / shard for shard in shards]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{str(given)!r} is not an index of weights: it has no readable weight_map.",
                            remedy="Fetch it again.") from error
    if absent := [file.name for file in files if not file.is_file()]:
        raise BadCheckpoint(f"{len(absent)} of the {len(files)} files that {str(given)!r} names are missing ({_some(absent)}).",
                            remedy="Fetch the rest of the model into the same folder.")
    return files


def read(path: str | Path, *, wrappers: Sequence[str] = WRAPPERS) -> dict[str, Tensor]:
    """The tensors of a weights file, or of :func:`parts` together, by name, mapped from disk.

    A pickle is read with ``weights_only``. Training code stores the weights beside an optimizer and its arguments: the first
    of ``wrappers`` that holds tensors is taken, else the file is the state dict itself. Raises BadCheckpoint.
    """
    return {name: tensor for file in parts(path) for name, tensor in _read(file, wrappers).items()}


def _read(file: Path, wrappers: Sequence[str]) -> dict[str, Tensor]:
    with file.open("rb") as stream:
        head = stream.read(9)
    if head.startswith(b"PK\x03\x04"):
        return _unwrap(_unpickle(file), file, wrappers)
    if head[8:] == b"{":
        return _safetensors(file)
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it is neither safetensors nor the zip that torch.save writes.",
                        remedy="Give a .safetensors or .pt file; save an older torch file again with a current torch.")


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
    """A module with the weights at ``path``, in eval mode and without gradients.

    Every tensor of the module must be in the file with its shape, and every tensor of the file, under the name that ``rename``
    makes of its own, must be one of the module, except ``EXTRAS`` and what matches a pattern of ``ignore`` (as of ``fnmatch``).
    ``dtype`` converts floating-point tensors; None keeps those of the file. Changing a weight later never changes the file.
    Raises BadCheckpoint with the first names that do not fit.
    """
    module, present = _fitted(factory, path, ignore, wrappers, rename)
    for name in present:  # in place, so that each source can go as soon as its copy is made
        present[name] = present[name].to(device, dtype if present[name].is_floating_point() else None)
    module.load_state_dict(present, assign=True)
    left = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    assert not left, f"{type(module).__name__} must compute {left} on first use: it is in no checkpoint"
    return module.eval().requires_grad_(False)


def check(
    factory: Callable[[], nn.Module], path: str | Path, *, ignore: Sequence[str] = (), wrappers: Sequence[str] = WRAPPERS,
    rename: Callable[[str], str] = str,
) -> None:
    """Raise what :func:`load` would raise for this file, without reading its weights."""
    _fitted(factory, path, ignore, wrappers, rename)


def _fitted(
    factory: Callable[[], M], path: str | Path, ignore: Sequence[str], wrappers: Sequence[str], rename: Callable[[str], str]
) -> tuple[M, dict[str, Tensor]]:
    """The module on the meta device, and the mapped tensors that fit it."""
    with torch.device("meta"), _NoDraws():
        module = factory()
    wanted = module.state_dict()
    patterns = (*EXTRAS, *ignore)
    named = ((rename(name), tensor) for name, tensor in read(path, wrappers=wrappers).items())
    present = {name: tensor for name, tensor in named if name in wanted or not _matches(name, patterns)}
    _compare(wanted, present, f"{str(path)!r} does not fit {type(module).__name__}")
    return module, present


def _existing(path: str | Path) -> Path:
    if not is_readable(path):
        raise _unreadable(path)
    return Path(path)


def _unreadable(path: str | Path, reason: str = "") -> BadCheckpoint:
    return BadCheckpoint(f"{str(path)!r} is not a file that can be read{reason}.", remedy="Give the path of a .safetensors or .pt file.")


def _unpickle(file: Path) -> Any:
    try:
        # A TorchScript archive warns before it is refused; the refusal says enough.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
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
        raise BadCheckpoint(f"{str(file)!r} is not a safetensors file, or a damaged one: {error}.",
                            remedy="Fetch it again and compare its SHA-256.") from error


def _unwrap(content: Any, file: Path, wrappers: Sequence[str]) -> dict[str, Tensor]:
    """The first wrapped mapping that holds tensors, else the tensors at the top level."""
    top = content if isinstance(content, Mapping) else {}
    for candidate in (*(top.get(name) for name in wrappers), top):
        present = candidate if isinstance(candidate, Mapping) else {}
        tensors = {str(name): value for name, value in present.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
    holds = f"the entries {_some(map(str, top))}" if top else f"a {type(content).__name__}"
    raise BadCheckpoint(f"{str(file)!r} is not a checkpoint: it holds {holds} and no tensors by name.",
                        remedy=f"Tensors are looked for under {', '.join(wrappers)} and at the top level.")


def _compare(wanted: Mapping[str, Tensor], present: Mapping[str, Tensor], title: str) -> None:
    missing = [name for name in wanted if name not in present]
    unexpected = [name for name in present if name not in wanted]
    shapes = [f"{n} {_shape(present[n])} != {_shape(t)}" for n, t in wanted.items() if n in present and present[n].shape != t.shape]
    kinds = {f"of {len(wanted)} tensors missing": missing, "unexpected": unexpected, "of another shape": shapes}
    faults = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
    if not faults:
        return
    sizes = _counts(wanted, present)[:SHOWN] + shapes[:1]
    if sizes:
        remedy = f"This is a checkpoint of another size: {', '.join(sizes)} (file != model)."
    elif before := _stray(missing, unexpected):
        remedy = f"Its names start with {before!r}: save it without that prefix."
    else:
        remedy = "Give the weights file of this model."
    raise BadCheckpoint(f"{title}: {'; '.join(faults)}.", remedy=remedy)


def _stray(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """The prefix of the file's names, where that alone keeps the first missing one from being found; else empty."""
    if not missing:
        return ""
    end = "." + missing[0]
    return next((name.removesuffix(end) + "." for name in unexpected if name.endswith(end)), "")


def _counts(wanted: Iterable[str], present: Iterable[str]) -> list[str]:
    """Lists of modules, such as ``layers``, that both sides have in different length, outermost only."""
    model, file = _lengths(wanted), _lengths(present)
    differ = [name for name in model if name in file and file[name] != model[name]]
    outer = [name for name in differ if not any(name.startswith(other + ".") for other in differ)]
    return [f"{name or 'modules'} {file[name]} != {model[name]}" for name in outer]


def _lengths(names: Iterable[str]) -> dict[str, int]:
    """``{"layers": 12}`` from ``layers.0.…`` to ``layers.11.…``."""
    lengths: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal():
                owner = ".".join(parts[:i])
                lengths[owner] = max(lengths.get(owner, 0), int(part) + 1)
    return lengths


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _some(names: Iterable[str]) -> str:
    """The first few names, and a sign that there are more."""
    every = list(names)
    return ", ".join(every[:SHOWN]) + (", …" if len(every) > SHOWN else "")
