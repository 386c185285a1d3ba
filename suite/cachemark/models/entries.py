"""Entries of a weights file, and the choice of the one that fills a module.

Training code stores several copies of the weights (raw, averaged) under names of its own, and its wrappers (DDP, FSDP, ``torch.compile``,
activation checkpoints) leave parts in the names of tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

from torch import Tensor

from ..core.errors import BadCheckpoint

AVERAGED = ("*ema*", "*avg*", "*average*", "*swa*")  # names of entries with averaged weights
WRAPPERS = (*AVERAGED, "model", "module", "state_dict", "")  # entries in order of preference; the last is the top level
WRAPPING = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}  # parts of names
ADAPTERS = re.compile(r"(^|[._])lora_|(^|\.)lokr_|(^|\.)hada_w")  # in names of tensors that change a model's weights
CHUNK = re.compile(r"(?:^|(?<=\.))block_chunks\.(\d+)\.(?:module\.)?(\d+)(?=\.)")  # Infinity's groups of blocks
DEPTH = 3  # of nested mappings in which tensors are looked for
TOP = "top"  # label of the top level
SHOWN = 3  # most names in an error; of more, only the number is printed


@dataclass(frozen=True)
class Entry:
    """Tensors of a file by name; ``name`` is the dotted path of their mapping, empty at the top level."""

    name: str
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Filling:
    """An entry that may fill a module: its tensors under the module's names, and how many of these are missing."""

    name: str
    tensors: Mapping[str, Tensor]
    missing: int

    @property
    def label(self) -> str:
        """The name that people select it by."""
        return self.name or TOP


@dataclass(frozen=True)
class ChosenEntry:
    """The chosen ``tensors`` under the module's names.

    ``entry`` is the name of the chosen entry if the file holds several that fit, else empty; ``notes`` tell people about the choice.
    """

    tensors: dict[str, Tensor]
    entry: str
    notes: tuple[str, ...]


def entries(content: Any, name: str = "") -> Iterator[Entry]:
    """Yield every mapping of the content of a file that holds tensors."""
    if not isinstance(content, Mapping):
        return
    if tensors := {str(key): value for key, value in content.items() if isinstance(value, Tensor)}:
        yield Entry(name, tensors)
    if name.count(".") < DEPTH - 1:
        for key, value in content.items():
            if isinstance(key, str):
                yield from entries(value, f"{name}.{key}" if name else key)


def choose(
    listed: Sequence[Entry], expected: Iterable[str], file: str, *, entry: str, wrappers: Sequence[str], rename: Callable[[str], str],
) -> ChosenEntry:
    """Return the tensors of the entry that has all ``expected`` names, else of the one that lacks fewest.

    Of several that fit, the first by ``wrappers``, patterns of their names. ``entry`` names another. Raises BadCheckpoint for a name that
    no entry has, for several entries that are equally preferred, and for adapters.
    """
    names = list(expected)
    fillings = [filling for each in listed for filling in _fillings(each, names, rename)]
    fewest = min(each.missing for each in fillings)
    if fewest and (adapters := [name for each in listed for name in each.tensors if ADAPTERS.search(name)]):
        raise BadCheckpoint(f"{file!r} holds a LoRA adapter, which changes the weights of a model and does not contain them "
                            f"({some(adapters)}).", remedy="Merge it into its model (merge_and_unload of peft) and save the result.")
    fitting = sorted((each for each in fillings if each.missing == fewest), key=lambda each: _preference(each.name, wrappers))
    rivals = [each for each in fitting[1:] if not fewest and not _equal(each, fitting[0])]
    chosen = fitting[0]
    if entry:
        named = [each for each in fillings if entry in (each.label, each.name.rpartition(".")[2])]
        if not named:
            raise BadCheckpoint(f"{file!r} has no entry {entry!r} that holds tensors.",
                                remedy=f"Name one of: {some(sorted(each.label for each in fillings))}.")
        chosen = min(named, key=lambda each: each.missing)
    elif equals := [each for each in rivals if _preference(each.name, wrappers) == _preference(chosen.name, wrappers)]:
        raise BadCheckpoint(f"{file!r} holds several copies of the weights ({some(each.label for each in (chosen, *equals))}), and none "
                            "is known to be the one to use.", remedy=f'Name one: weights = "{file}#{chosen.label}".')
    if not rivals:
        return ChosenEntry(dict(chosen.tensors), "", ())
    others = [each.label for each in fitting[1:]]
    kind = "averaged" if _rank(chosen.name, AVERAGED) < len(AVERAGED) else "raw"
    if entry:
        return ChosenEntry(dict(chosen.tensors), chosen.label, ())
    note = (f"{file!r} holds several copies of the weights: the {kind} ones under {chosen.label!r} are used, not those under "
            f'{some(others)}. To use others: weights = "{file}#{others[0]}".')
    return ChosenEntry(dict(chosen.tensors), chosen.label, (note,))


def _fillings(entry: Entry, expected: Sequence[str], rename: Callable[[str], str]) -> Iterator[Filling]:
    """Yield the entry as it is, and the groups of its tensors under a common prefix that may be the model."""
    whole, missing = _named(entry.tensors, expected, rename)
    short = canonical(entry.tensors)
    sizes = Counter(prefix for name in short.values() for prefix in list(accumulate(name.split(".")[:-1], "{}.{}".format))[:DEPTH])
    prefixes = [prefix for prefix, size in sizes.items() if size >= len(expected) and (missing or _rank(prefix, AVERAGED) < len(AVERAGED))]
    groups = []
    for prefix in prefixes:
        inner = {own.removeprefix(f"{prefix}."): entry.tensors[name] for name, own in short.items() if own.startswith(f"{prefix}.")}
        tensors, absent = _named(inner, expected, rename)
        if not absent:
            groups.append((prefix, Filling(f"{entry.name}.{prefix}".lstrip("."), tensors, 0)))
    apart = [name for name, own in short.items() if any(own.startswith(f"{prefix}.") for prefix, _ in groups)]
    if not missing:
        whole = {own: tensor for own, tensor in whole.items() if own not in apart}
    yield Filling(entry.name, whole, missing)
    yield from (filling for _, filling in groups)


def _named(tensors: Mapping[str, Tensor], expected: Sequence[str], rename: Callable[[str], str]) -> tuple[dict[str, Tensor], int]:
    """Return tensors under the module's names, without parts of wrappers if only then all are there; and how many are missing."""
    named = {rename(name): tensor for name, tensor in tensors.items()}
    missing = sum(name not in named for name in expected)
    if not missing:
        return named, 0
    own_names, short = {own: name for name, own in canonical(expected).items()}, canonical(tensors)
    unwrapped, first = dict[str, Tensor](), dict[str, str]()
    for name, tensor in tensors.items():
        own = rename(short[name])
        own = own_names.get(own, own)
        if first.setdefault(own, name) != name:
            return named, missing
        unwrapped[own] = tensor
    absent = sum(name not in unwrapped for name in expected)
    return (unwrapped, absent) if absent < missing else (named, missing)


def canonical(names: Iterable[str]) -> dict[str, str]:
    """Return each name without parts that wrappers added, and with blocks numbered through all chunks."""
    listed = list(names)
    chunks = sorted({(int(match[1]), int(match[2])) for name in listed for match in CHUNK.finditer(name)})
    number = {place: index for index, place in enumerate(chunks)}
    flat = ((name, CHUNK.sub(lambda match: f"blocks.{number[int(match[1]), int(match[2])]}", name)) for name in listed)
    return {name: ".".join(part for part in own.split(".") if part not in WRAPPING) for name, own in flat}


def _preference(name: str, patterns: Sequence[str]) -> tuple[int, int]:
    """Return the rank of an entry by any part of its name, then by the last: ``ema.ema_model``."""
    return _rank(name, patterns), _rank(name.rpartition(".")[2], patterns)


def _rank(name: str, patterns: Sequence[str]) -> int:
    parts = name.lower().split(".")
    return next((at for at, pattern in enumerate(patterns) if any(fnmatchcase(part, pattern) for part in parts)), len(patterns))


def _equal(first: Filling, second: Filling) -> bool:
    """Return whether two entries are the same tensors of the file."""
    return all(first.tensors[name].data_ptr() == second.tensors[name].data_ptr() for name in first.tensors if name in second.tensors)


def some(names: Iterable[str]) -> str:
    """Return the first few names, with an ellipsis if there are more."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (", …" if len(listed) > SHOWN else "")
