"""A window that waits before it begins, busily, for as long as its knob says: on a GPU the device waits and not the host."""
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

import cachemark as cm
from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, Site
from cachemark.methods.window import Window


@functools.cache
def cycles(device: torch.device) -> float:
    """Cycles that the device spins in a second."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)
    begun.record()
    torch.cuda._sleep(10**8)
    ended.record()
    ended.synchronize()
    return 1e11 / begun.elapsed_time(ended)


def wait(seconds: float, device: torch.device) -> None:
    """Keep the device busy."""
    if seconds and device.type == "cuda":
        torch.cuda._sleep(int(seconds * cycles(device)))
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@cm.method("delayed")
@dataclass
class Delayed(Window):
    """A window that waits before it begins."""

    wait: float = 0.0
    name: ClassVar[str] = "delayed"
    source: ClassVar[str] = "the gate's self-test"

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        wait(self.wait, memory.device)
        super().begin(layout, sites, memory)
