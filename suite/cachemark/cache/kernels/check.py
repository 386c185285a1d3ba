"""The check of kernels on a device before their first use, and what earlier checks of the device class found.

A small call of the same kind (dtype, head width, group, codec, lengths) is computed and compared with torch's attention and with fp64. This
is part of the first generation of a case, which is a warm-up. The result is stored for the device class and the versions of all that
decides what a kernel computes, so other cases and processes do not repeat it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

from ...core.files import cache_folder, read_json, replacing
from ..codec import GROUP, Parts, levels, pack
from ..codecs import CODECS
from .plain import sdpa
from .record import HEADS, ONE, Entries, Kernel, Part, Query, Ranges, Stored, fold

ROWS, KEYS, QUERIES = 3, (70, 64), 20  # odd sizes: more keys than a block, and not a multiple of one, and an even one
SHORTER = (70, 5, 37)  # keys of each row, where these differ
WORST = 4  # times the error of torch's attention on the same numbers
PACKAGES = ("torch", "triton", "flashinfer-python")
FAILS = "it fails on this device"

_failed = set[str]()  # kinds of call that failed in this process
_noted: ContextVar[set[str] | None] = ContextVar("faults of a case", default=None)
_measuring: ContextVar[bool] = ContextVar("a timed generation", default=False)


# -- results ----------------------------------------------------------------------------------------------------------
def fault(kernel: Kernel, query: Query) -> str:
    """Return why a kernel cannot be trusted with calls like ``query`` on its device, or ""; it runs on the first call of a kind."""
    kind = _kind(query)
    return remembered(_name(kernel, kind), kind.device, lambda: compare(kernel, kind))


def distrust(kernel: Kernel, query: Query, error: Exception) -> None:
    """Store that a kernel fails in calls like ``query``, which its check did not find."""
    kind = _kind(query)
    _store(_name(kernel, kind), kind.device, failure(error))


def failure(error: Exception) -> str:
    """Return the first line of an error of a compiler or driver, as a reason."""
    return f"{FAILS}: {(str(error).strip() or type(error).__name__).splitlines()[0][:200]}"


def remembered(name: str, device: str, check: Callable[[], str]) -> str:
    """Return the stored result of a check on a device type, or run it: a reason not to use what it checks, or "".

    A failure in an earlier process may be over, so it is tried again.
    """
    known = results(device)
    if name in known and (name in _failed or not known[name].startswith(FAILS)):
        return known[name]
    return _store(name, device, check())


def results(device: str) -> dict[str, str]:
    """Return the results of all checks so far on this device class with these versions, by the name of the kind of call."""
    return _known(device, _file(device))


@cache
def _known(device: str, file: Path) -> dict[str, str]:
    with suppress(ValueError):
        read = read_json(file)
        if isinstance(read, dict):
            return {str(name): str(reason) for name, reason in read.items()}
    return {}


def _store(name: str, device: str, reason: str) -> str:
    """Keep a result in this process, and for others if the folder can be written."""
    known = results(device)
    known[name] = reason
    if reason.startswith(FAILS):
        _failed.add(name)
    with suppress(OSError), replacing(_file(device)) as part:
        part.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return reason


def _file(device: str) -> Path:
    return cache_folder() / "kernels" / f"{_device_class(device)}.json"


@cache
def _device_class(device: str) -> str:
    """Return a digest of the device's name and architecture, the versions of PACKAGES and CUDA, and the code of the kernels."""
    facts = [device, str(torch.version.cuda), *map(_version, PACKAGES)]
    if device == "cuda":
        facts += [torch.cuda.get_device_name(), str(torch.cuda.get_device_capability())]
    code = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join([*(fact.encode() for fact in facts), *code])).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _kind(query: Query) -> Query:
    """Return the call that stands for all calls like ``query``: two K/V heads, and one query or a few."""
    return query._replace(heads=2 * query.group, kv_heads=2, tokens=1 if query.tokens == 1 else QUERIES, captured=False)


def _name(kernel: Kernel, kind: Query) -> str:
    parts = [str(kind.dtype).removeprefix("torch."), f"{kind.head_dim} channels", f"group {kind.group}",
             "one query" if kind.tokens == 1 else "many queries", kind.lengths]
    parts += [kind.codec] * (kind.codec != "native") + ["causal"] * kind.causal + ["with mass"] * kind.mass
    return f"{kernel.name}: {', '.join(parts)}"


# -- what a case hears of it ------------------------------------------------------------------------------------------
@contextmanager
def noting() -> Iterator[set[str]]:
    """Collect within what was passed over because of a check or a failure, one sentence each."""
    notes = set[str]()
    token = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(token)


def note(what: str, reason: str, verb: str = "is") -> None:
    """Add to the notes of the case that is being measured, if there is one."""
    if (notes := _noted.get()) is not None:
        notes.add(f"{what} {verb} not used: {reason}.")


@contextmanager
def measuring(on: bool) -> Iterator[None]:
    """Within a timed generation, a kernel that fails ends the case instead of being replaced."""
    token = _measuring.set(on)
    try:
        yield
    finally:
        _measuring.reset(token)


def replaceable(error: Exception) -> bool:
    """Return whether another kernel may compute a call that raised ``error``."""
    return not (_measuring.get() or isinstance(error, torch.OutOfMemoryError | AssertionError))


# -- the comparison ---------------------------------------------------------------------------------------------------
def compare(kernel: Kernel, query: Query) -> str:
    """Run a kernel on small odd calls like ``query``; return how it deviates from fp64 or fails, or ""."""
    for keys in KEYS if query.lengths == ONE else KEYS[:1]:
        if reason := _compare(kernel, query, keys):
            return reason
    return ""


def _compare(kernel: Kernel, query: Query, keys: int) -> str:
    draw = torch.Generator(query.device).manual_seed(0)
    shape = (2, ROWS, query.kv_heads, keys, query.head_dim)
    try:
        k, v = torch.randn(shape, generator=draw, device=query.device).to(query.dtype)
        q = torch.randn(ROWS, query.heads, query.tokens, query.head_dim, generator=draw, device=query.device).to(query.dtype)
        stored, k, v = _stored(k, v, query)
        lengths = [keys] * ROWS if query.lengths in (ONE, HEADS) else list(SHORTER)
        parts = [Part(slice(row, row + 1), None, k[row : row + 1, :, :n], v[row : row + 1, :, :n]) for row, n in enumerate(lengths)]
        if query.lengths == ONE:
            parts = [Part(slice(None), None, k, v)]
        elif query.lengths == HEADS:
            parts = [Part(slice(None), list(range(query.kv_heads)), k, v)]
        rounded = [part._replace(k=part.k.to(query.dtype), v=part.v.to(query.dtype)) for part in parts]
        entries = Entries(query.kv_heads, lambda: rounded, lambda: stored, CODECS[query.codec], query.lengths)
        out, mass = kernel.run(q, entries, query.causal, None, query.mass)
        return _deviation(q, parts, out, mass, causal=query.causal)
    except Exception as error:  # whatever a compiler or driver raises
        return failure(error)


def _stored(k: Tensor, v: Tensor, query: Query) -> tuple[Stored, Tensor, Tensor]:
    """Return keys and values as a codec stores them, and what they are decoded to, in fp64."""
    codec, longest = CODECS[query.codec], k.size(2)
    values, lengths, ranges = codec.encode(v), None, None
    if query.lengths not in (ONE, HEADS):
        lengths = torch.tensor(SHORTER, dtype=torch.int32, device=k.device)[:, None]
    keys: Parts
    if codec.grouped:
        keys, ranges, k = _shared(k)
    else:
        keys = codec.encode(k)
        k = codec.decode(keys, torch.float64)
    stored = Stored(keys, values, longest, lengths, None, ranges)
    if query.lengths == HEADS:
        starts = torch.arange(0, k.size(1) * longest, longest, dtype=torch.int32, device=k.device)[None]
        flat_k, flat_v = (tuple(part.flatten(1, 2)[:, None] for part in parts) for parts in (keys, values))
        stored = Stored(flat_k, flat_v, longest, torch.full_like(starts, longest), starts)
    return stored, k.double(), codec.decode(values, torch.float64).double()


def _shared(k: Tensor) -> tuple[Parts, Ranges, Tensor]:
    """Return keys in groups of tokens that share ranges; the last group is still being filled."""
    longest = k.size(2)
    full = longest // GROUP * GROUP
    codes, step, least = levels(k[:, :, :full].unflatten(2, (-1, GROUP)), -2)
    old = (codes.double() * step.double() + least.double()).flatten(2, 3)
    packed = torch.zeros(*k.shape[:3], k.size(-1) // 2, dtype=torch.uint8, device=k.device)
    packed[:, :, :full] = pack(codes).flatten(2, 3)
    newest = torch.zeros(*k.shape[:2], GROUP, k.size(-1), dtype=k.dtype, device=k.device)
    newest[:, :, : longest - full] = k[:, :, full:]
    arrival = torch.arange(longest, dtype=torch.int16, device=k.device).expand(k.shape[:3])[..., None].contiguous()
    ranges = Ranges(step.squeeze(-2), least.squeeze(-2), newest, torch.full((ROWS,), full + 1, device=k.device))
    return (packed, arrival), ranges, torch.cat((old, k[:, :, full:].double()), 2)


def _deviation(q: Tensor, parts: list[Part], out: Tensor, mass: Tensor | None, *, causal: bool) -> str:
    """Compare with fp64, and with the error of torch's attention on the same numbers."""
    worst = own = heaviest = 0.0
    for part in parts:
        exact = sdpa(q[part.rows].double(), part.k, part.v, causal)
        plain = sdpa(q[part.rows], part.k.to(q.dtype), part.v.to(q.dtype), causal)
        worst = max(worst, float((out[part.rows].double() - exact).abs().max()))
        own = max(own, float((plain.double() - exact).abs().max()))
        if mass is not None:
            weights = (fold(q[part.rows].double(), part.k.size(1)) @ part.k.mT * q.size(-1) ** -0.5).softmax(-1).sum(2)
            heaviest = max(heaviest, float((mass[part.rows, :, : part.k.size(2)].double() - weights).abs().max()))
    limit = WORST * max(own, 4 * torch.finfo(q.dtype).eps)
    if worst <= limit and heaviest <= limit * q.size(1) * q.size(2):  # not if NaN
        return ""
    return f"it deviates from fp64 by {max(worst, heaviest):.2g} on this device, torch's attention by {own:.2g}"
