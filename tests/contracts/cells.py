"""The cells: every next-token method × its further modes × codec × kind of attention."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import pytest

from cachemark.cache.codecs import CODECS
from cachemark.contract.method import Method
from cachemark.kit.next_token import ATTENTION, Cell
from cachemark.methods.registry import METHODS

ALONE = [name for name, codec in CODECS.items() if not codec.grouped]  # those that every family takes
WHOLE = ("native", "int8")  # codecs under which everything runs; the others differ from int8 in how a vector is written alone
# Modes of a method that its budget alone does not reach. LineAR's anchor is small, so that its middle region leaves it a choice.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "headkv": ({"window": 1, "tau": 0.4}, {"grouped": False, "score": "softmax", "share": 0.6}),
    "linear": ({"anchor": 2}, {"anchor": 2, "score": "accumulated"}),
    "ssd_heads": ({}, {"buffer": "line", "recent": 6}),
    "window": ({}, {"keep_condition": False}),
}


def modes_of(
    applies: Callable[[type[Method]], bool], modes: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[tuple[type[Method], int, tuple[tuple[str, Any], ...]]]:
    """Return the modes, with their numbers, of each registered method to which this applies."""
    return [(cls, number, tuple(mode.items())) for cls in map(METHODS.get, METHODS) if applies(cls)
            for number, mode in enumerate(modes.get(cls.name, ({},)))]


def cells(*, evicting: bool = False) -> list[Cell]:
    """Return all cells, or those of methods that evict, from the registry."""
    modes = modes_of(lambda cls: "next-token" in cls.paradigms and (cls.evicts or not evicting), MODES)
    return [Cell(cls, mode, codec, attention) for cls, number, mode in modes for codec in CODECS for attention in ATTENTION
            if codec in WHOLE or (number == 0 and attention == "gqa")]  # fmt: skip


def sampled(chosen: Sequence[Any], always: Container[Any]) -> list[Any]:
    """Return parameters: cells in ``always`` for every run, the others marked slow."""
    return [pytest.param(cell, id=cell.label, marks=[] if cell in always else [pytest.mark.slow]) for cell in chosen]


def one_a_method(chosen: Sequence[Any]) -> list[Any]:
    """The first cell of each method, and the first with a codec that rounds."""
    return [*{cell.cls if cell.codec == "native" else cell.codec: cell for cell in reversed(chosen)}.values()]


def crossed(chosen: Sequence[Any]) -> list[Any]:
    """Return the native cells with own heads, those of int8 with shared ones of every third method, and one of each other codec."""
    once = {cell.codec: cell for cell in sorted(chosen, key=lambda cell: cell.cls.evicts) if cell.codec not in WHOLE}
    third = list(dict.fromkeys(cell.cls for cell in chosen))[::3]
    return [cell for cell in chosen if once.get(cell.codec, cell) is cell and (cell.codec == "native") == (cell.attention == "mha")
            and (cell.codec != "int8" or cell.cls in third)]
