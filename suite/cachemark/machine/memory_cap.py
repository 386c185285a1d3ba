"""A limit to what a trial may allocate, so that a small card can be imitated on a large one."""

from __future__ import annotations

from pathlib import Path

import torch


def cap(device: str, nbytes: int) -> None:
    """Let this process allocate ``nbytes`` bytes and no more; beyond them it runs out of memory as on a card of that size.

    CUDA: of torch's allocator, model included. CPU, where the system can limit it: of the process's data, above what it holds now; the
    model is loaded afterwards and counts too.
    """
    if device != "cpu":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total))
        return
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (_data() + nbytes,) * 2)


def _data() -> int:
    """Bytes of data that this process has mapped."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmData:")
