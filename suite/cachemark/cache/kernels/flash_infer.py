"""FlashInfer's decode kernel, an optional backend that reads layer caches in place: each row's buffer is one page.

Its arguments follow flashinfer-python 0.7 (https://docs.flashinfer.ai/api/attention.html).
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..codec import NATIVE
from .plain import Outputs
from .record import ONE, ROWS, Entries, Kernel, Query, Stored, flops

WIDTHS = (64, 128, 256, 512)
GROUPS = (1, 2, 3, 4, 6, 8)
WORKSPACE = 128 * 2**20  # bytes, as its documentation recommends
TOOLKIT = "/usr/local/cuda"  # where it is usually installed


class Pages(NamedTuple):
    """Shapes and lengths that a plan of FlashInfer is made for.

    ``lengths`` (rows or 1, 1) lie on the device, or are None if all rows have ``longest`` keys.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    longest: int
    lengths: Tensor | None


_planned: dict[torch.device, tuple[Any, Pages | None]] = {}


@cache
def flashinfer_missing() -> str:
    """Return why FlashInfer cannot be used, or ""."""
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed: pip install 'cachemark[flashinfer]'"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), TOOLKIT]
    compilers = [os.environ.get("FLASHINFER_NVCC"), *(str(Path(home, "bin/nvcc")) for home in homes if home)]
    if find_spec("flashinfer_jit_cache") or shutil.which("nvcc") or any(path and Path(path).exists() for path in compilers):
        return ""
    return "FlashInfer compiles its kernels at first use, and there is no nvcc: install the CUDA toolkit, or set CUDA_HOME"


def _refuses(query: Query) -> str:
    if query.device != "cuda":
        return "it needs a CUDA device"
    if query.tokens > 1 or query.masked or query.lengths not in (ONE, ROWS):
        return "it is for one query per row, without a mask, over rows of one storage"
    if query.mass:
        return "it returns no attention mass"
    if query.codec != NATIVE.name:
        return f"the codec {query.codec}; it reads {NATIVE.name}"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"{query.dtype}; it has float16 and bfloat16"
    if query.head_dim not in WIDTHS:
        return f"heads of {query.head_dim} channels; it has {', '.join(map(str, WIDTHS))}"
    if query.group not in GROUPS:
        return f"{query.group} query heads share a key; it has {', '.join(map(str, GROUPS))}"
    return flashinfer_missing()


def _attend(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> Outputs:
    if entries.stored is not None:
        stored = entries.stored()
    else:
        (part,) = entries.parts()
        stored = Stored((part.k,), (part.v,), part.k.size(2))
    (k,), (v,) = stored.k, stored.v
    rows, heads, _, head_dim = q.shape
    pages = Pages(rows, heads, k.size(1), head_dim, k.size(2), q.dtype, stored.longest, stored.lengths)
    return wrapper(pages, q.device).run(q[:, :, 0].contiguous(), (k, v)).unsqueeze(2), None


def wrapper(pages: Pages, device: torch.device) -> Any:
    """Return FlashInfer's wrapper, planned for a call; the layers of a pass share a plan, which costs time on the host."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    paged, planned = _planned.get(device, (None, None))
    if paged is None:
        paged = BatchDecodeWithPagedKVCacheWrapper(torch.empty(WORKSPACE, dtype=torch.uint8, device=device), "HND")
    if planned is None or planned[:-1] != pages[:-1] or planned.lengths is not pages.lengths:
        places = torch.arange(pages.rows + 1, dtype=torch.int32)
        live = torch.full((pages.rows,), pages.longest, dtype=torch.int32) if pages.lengths is None else (
            pages.lengths[:, 0].expand(pages.rows).contiguous())
        paged.plan(places, places[:-1], live, pages.heads, pages.kv_heads, pages.head_dim, pages.page_size, q_data_type=pages.dtype,
                   kv_data_type=pages.dtype)
    _planned[device] = paged, pages
    return paged


FLASHINFER = Kernel("flashinfer", _refuses, _attend, flops, capturable=False, ours=True)
