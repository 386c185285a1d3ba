"""Rates of devices and the roofline time of a case on one of them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .errors import unknown
from .stored_table import StoredTable, needed


@dataclass(frozen=True)
class Rates:
    """Rates of one device and dtype.

    ``bandwidth``: bytes read and written per second. ``peak_flops``: FLOPs per second."""

    bandwidth: float
    peak_flops: float
    device: str = ""


# In 16 bit. From data sheets (dense, 80 GB A800 and H100 SXM; of the RTX 3090 with fp32 accumulation, which PyTorch uses); of the H200
# the measured rates of a copy and of a large product.
GPUS = {
    "a800": Rates(2.04e12, 312e12, "A800 80 GB"),
    "a100": Rates(2.04e12, 312e12, "A100 80 GB"),
    "h100": Rates(3.35e12, 989e12, "H100 SXM"),
    "h200": Rates(4.3e12, 790e12, "H200"),
    "h20": Rates(4.0e12, 148e12, "H20"),
    "3090": Rates(0.94e12, 71e12, "RTX 3090"),
}


# In fp32 without TF32, from data sheets.
SINGLE = {"a800": 19.5e12, "a100": 19.5e12, "h100": 67e12, "h200": 67e12, "h20": 44e12, "3090": 35.6e12}


def gpu(name: str, dtype: str = "bfloat16") -> Rates:
    """Return the rates of a GPU. Raises UnknownName with the nearest name."""
    if name not in GPUS:
        raise unknown("GPU", name, GPUS)
    return replace(GPUS[name], peak_flops=SINGLE[name]) if dtype == "float32" else GPUS[name]


@dataclass(frozen=True)
class Limit(StoredTable):
    """The roofline time of a case on the device that measured it, with image decoding."""

    roofline_time: float = needed("least time of a batch", "s")
    tokens: float = needed("its part without image decoding", "s")
    nbytes: float = needed("bytes read and written per batch", "B")
    flops: float = needed("FLOPs per batch", "FLOP")
    bandwidth: float = needed("measured memory bandwidth of the device", "B/s")
    peak_flops: float = needed("measured peak rate of the device", "FLOP/s")
    by: Mapping[str, float] = needed("least time by kind of work", "s")

    def mbu(self, seconds: float) -> float:
        """Return the fraction of the bandwidth used by the necessary bytes; redundant reads lower it."""
        return self.nbytes / self.bandwidth / seconds

    def mfu(self, seconds: float) -> float:
        """Return the fraction of the peak FLOP/s used by the necessary FLOPs."""
        return self.flops / self.peak_flops / seconds

    def over(self, seconds: float) -> float:
        """Return measured time as a multiple of the roofline time."""
        return seconds / self.roofline_time


def roofline_speedup(full: Limit, candidate: Limit) -> float:
    """Return the speedup over the full cache that the saved bytes and FLOPs allow at equal batch."""
    return full.roofline_time / candidate.roofline_time
