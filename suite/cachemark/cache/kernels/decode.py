"""The decode kernel's record: attention of one query per row and head, of codes and several lengths in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from .mass import interpreted, triton_missing
from .plain import Outputs
from .record import APART, Entries, Kernel, Query, Stored, flops

if TYPE_CHECKING:
    from .fused import Turn

WIDTHS = (16, 32, 48, 64, 80, 96, 100, 128)
LARGEST_GROUP = 16
READABLE = ("native", "int8", "fp8", "int4", "kivi4")


def _refuses(query: Query) -> str:
    if query.device != "cuda" and not interpreted():
        return "it needs a CUDA device"
    if query.tokens > 1 or query.masked or query.lengths == APART:
        return "it is for one query per row, without a mask, over one storage"
    if query.codec not in READABLE:
        return f"the codec {query.codec}; it reads {', '.join(READABLE)}"
    if query.head_dim not in WIDTHS:
        return f"heads of {query.head_dim} channels; it has {', '.join(map(str, WIDTHS))}"
    if query.group > LARGEST_GROUP:
        return f"{query.group} query heads share a key; it has at most {LARGEST_GROUP}"
    if query.dtype.itemsize > 4:
        return f"{query.dtype}; it computes in fp32"
    return triton_missing()


def _attend(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> Outputs:
    from .decode_triton import decode

    if entries.stored is not None:
        return decode(q, entries.stored(), entries.codec.name, mass=mass)
    (part,) = entries.parts()
    return decode(q, Stored((part.k,), (part.v,), part.k.size(2)), "native", mass=mass)


def _turned(
    qkv: Tensor, turn: Turn, k: Tensor, v: Tensor, live: int, asked: bool, lengths: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    from .fused import attend_turned

    return attend_turned(qkv, turn, k, v, live, asked, lengths)


DECODE = Kernel("triton-decode", lambda query: "it returns no attention mass" if query.mass else _refuses(query), _attend, flops,
                in_place=True, ours=True, turned=_turned)
DECODE_WITH_MASS = replace(DECODE, name="triton-decode-with-mass",
                           refuses=lambda query: _refuses(query) if query.mass else "it is for the attention mass alone")
