"""Settings of torch that decide how fast and how exactly a whole process computes, the full cache beside a method too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SDPA = torch.backends.cuda
SETTINGS: tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...] = (
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("torch's matmul precision (TF32)", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("torch's deterministic flag", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    ("torch's grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("torch's autocast on the CPU", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    ("the flash backend of SDPA", SDPA.flash_sdp_enabled, SDPA.enable_flash_sdp),
    ("the memory-efficient backend of SDPA", SDPA.mem_efficient_sdp_enabled, SDPA.enable_mem_efficient_sdp),
    ("the math backend of SDPA", SDPA.math_sdp_enabled, SDPA.enable_math_sdp),
)


@contextmanager
def settings_restored() -> Iterator[list[str]]:
    """Put back, behind the block, what it has changed of these settings. The list then says in words what that was."""
    before, changes = [read() for _, read, _ in SETTINGS], list[str]()
    try:
        yield changes
    finally:
        for (name, read, write), then in zip(SETTINGS, before, strict=True):
            if (now := read()) != then:
                changes.append(f"{name} ({then} → {now})")
                write(then)
