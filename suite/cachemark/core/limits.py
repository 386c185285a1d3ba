"""Lower limits of a device on the time of a generation, and the reading of a measured time beside them. Arithmetic alone, without torch.

A generation is a bill of operations, each with its FLOPs and the bytes it has to move. No operation can be faster than its bytes at
the device's copy rate or its FLOPs at its matmul rate, whichever takes longer, and operations run one after the other: their sum is
the *least time*. It assumes that everything is read once, that nothing is launched, waited for or padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from .errors import unknown

BYTES = ("weights", "read", "written", "activations", "own")
ARTEFACT = 1.1  # measured over ideal speed-up from which the baseline, not the method, is the likelier cause
IDLE = 0.4  # of a full cache that uses less of both the copy and the matmul rate, a speed-up says little
FITS = 0.9  # share of the variance that a line must explain before its slope is stated
EARLIER = {"floor": "least_time"}  # names in facts that were stored before
CACHED = 0.95  # measured over least time below which the device's own caches must have served


class Op(NamedTuple):
    """One operation, ``times`` over. ``flops``: a multiplication and an addition are two. The rest are bytes: of ``weights``; of
    keys and values ``read`` (live ones only) and ``written``; of ``activations`` that its products hand to one another at least; of
    what a method reads and writes beside the model (``own``: scores, moved entries)."""

    part: str
    flops: int = 0
    weights: int = 0
    read: int = 0
    written: int = 0
    activations: int = 0
    own: int = 0
    times: int = 1

    @property
    def nbytes(self) -> int:
        """Of one time."""
        return self.weights + self.read + self.written + self.activations + self.own


@dataclass(frozen=True)
class Rates:
    """Of one device and dtype: ``copy`` in bytes read and written per second, ``matmul`` in FLOPs per second."""

    copy: float
    matmul: float
    device: str = ""

    def seconds(self, op: Op, *, apart: bool = False) -> float:
        """The least that an operation takes, once. ``apart``: its activations are moved by kernels of their own, which nothing hides."""
        hidden = op.nbytes - op.activations if apart else op.nbytes
        return max(hidden / self.copy, op.flops / self.matmul) + (op.activations / self.copy if apart else 0.0)


# In 16 bit. From data sheets (dense, 80 GB A800 and H100 SXM; of the RTX 3090 with fp32 accumulation, which PyTorch uses); of the H200
# what a copy and a large product were measured to reach.
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
    """The rates of a GPU, or an error with the nearest name."""
    if name not in GPUS:
        raise unknown("GPU", name, GPUS)
    return replace(GPUS[name], matmul=SINGLE[name]) if dtype == "float32" else GPUS[name]


@dataclass(frozen=True)
class Bill:
    """All operations of one generation of ``batch`` images in ``passes`` passes, image decoding (part ``decode``) included."""

    ops: tuple[Op, ...]
    batch: int
    passes: int

    @classmethod
    def of(cls, ops: Iterable[Op], batch: int, passes: int) -> Bill:
        """Operations that are alike become one with more ``times``."""
        found: Counter[Op] = Counter()
        for op in ops:
            found[op._replace(times=1)] += op.times
        return cls(tuple(op._replace(times=times) for op, times in found.items()), batch, passes)

    def of_parts(self, *parts: str) -> Bill:
        """These parts of it alone."""
        return Bill(tuple(op for op in self.ops if op.part in parts), self.batch, self.passes)

    def without(self, *parts: str) -> Bill:
        """All but these parts."""
        return Bill(tuple(op for op in self.ops if op.part not in parts), self.batch, self.passes)

    @property
    def parts(self) -> list[str]:
        """In the order in which they first occur."""
        return list(dict.fromkeys(op.part for op in self.ops))

    @property
    def flops(self) -> int:
        return sum(op.flops * op.times for op in self.ops)

    def moved(self, *kinds: str) -> int:
        """Bytes of these kinds, of all where none is named."""
        return sum(getattr(op, kind) * op.times for op in self.ops for kind in kinds or BYTES)

    def least_time(self, rates: Rates, *, apart: bool = False) -> float:
        """Seconds that the batch takes at least; ``apart`` as in :meth:`Rates.seconds`: a stricter sum, which fused kernels may beat."""
        return sum(rates.seconds(op, apart=apart) * op.times for op in self.ops)


@dataclass(frozen=True)
class Limit:
    """The least cost of a case on the device that measured it, as it stands in an outcome's facts. ``least_time``: seconds of a batch;
    ``tokens``: of them without image decoding; ``nbytes`` and ``flops``: of a batch with image decoding."""

    least_time: float
    tokens: float
    nbytes: int
    flops: int
    copy: float
    matmul: float
    by: Mapping[str, float]  # seconds of the least time by part

    @classmethod
    def of(cls, bill: Bill, rates: Rates) -> Limit:
        by = {part: bill.of_parts(part).least_time(rates) for part in bill.parts}
        tokens = bill.without("decode").least_time(rates)
        return cls(sum(by.values()), tokens, bill.moved(), bill.flops, rates.copy, rates.matmul, by)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limit:
        return cls(**{**{EARLIER.get(name, name): value for name, value in data.items()}, "by": dict(data["by"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def mbu(self, seconds: float) -> float:
        """Share of the copy rate that the bytes which had to be moved used: what is read in vain lowers it."""
        return self.nbytes / self.copy / seconds

    def mfu(self, seconds: float) -> float:
        """Share of the matmul rate that the FLOPs which had to be computed used."""
        return self.flops / self.matmul / seconds

    def over(self, seconds: float) -> float:
        """Measured time as a multiple of the least time."""
        return seconds / self.least_time


def ideal(full: Limit, arm: Limit) -> float:
    """The speed-up over the full cache that the bytes and FLOPs saved allow at equal batch."""
    return full.least_time / arm.least_time


# -- flags ------------------------------------------------------------------------------------------------------------
def artefact(measured: float, allowed: float) -> str:
    """The reason for which a speed-up is not believed, or nothing; what is no faster is believed whatever is allowed."""
    if measured <= max(1.0, ARTEFACT * allowed):
        return ""
    return (f"{measured:.2f}× is more than the {allowed:.2f}× that the bytes and FLOPs saved allow: the full cache beside it is slow "
            "for another reason.")


def beyond_passes(measured: float, tokens: float, alone: float = 1.0) -> str:
    """The reason for which a speed-up by drawing several ``tokens`` a pass is not believed, or nothing. ``alone``: what its method and
    codec allow at one token a pass."""
    if measured <= max(1.0, ARTEFACT * tokens * alone):
        return ""
    if alone == 1:
        return f"{measured:.2f}× is more than the {tokens:.2f} tokens that it draws a pass, and fewer passes are all that a decoder gains."
    return (f"{measured:.2f}× is more than {tokens * alone:.2f}×: the {tokens:.2f} tokens that it draws a pass, times the {alone:.2f}× "
            "that the bytes and FLOPs saved allow at one.")


def idle(full: Limit, seconds: float) -> str:
    """The reason for which a speed-up over this full cache says little, or nothing: it leaves the device idle."""
    mbu, mfu = full.mbu(seconds), full.mfu(seconds)
    if max(mbu, mfu) >= IDLE:
        return ""
    return (f"The full cache leaves the device idle: it uses {100 * mbu:.0f} % of the copy rate and {100 * mfu:.0f} % of the matmul rate, "
            f"neither of them {100 * IDLE:.0f} %. A speed-up over it says little of a device that is used.")


def no_gain(measured: float, allowed: float) -> str:
    """The reason to use the full cache, or nothing; ``measured`` is the upper end of what the speed-up may be."""
    if measured > 1:
        return ""
    if allowed < 1:
        return "Use the full cache: the method is no faster here, and it saves no bytes or FLOPs at this batch."
    return f"Use the full cache: here the method is no faster, and bytes and FLOPs saved would allow {allowed:.2f}× at this batch."


def no_gain_by_passes(measured: float, tokens: float) -> str:
    """The reason not to draw several ``tokens`` a pass, or nothing; ``measured`` as in :func:`no_gain`."""
    if measured > 1:
        return ""
    return f"Use the full cache, one token a pass: {tokens:.2f} tokens a pass are no faster here, since each pass takes longer."


def too_fast(limit: Limit, seconds: float) -> str:
    """The reason for which the least time fails, or nothing: where everything fits a cache of the device, the copy rate of its memory does
    not bind."""
    if limit.over(seconds) >= CACHED:
        return ""
    return ("Faster than its least time: keys, values or weights fit a cache of the device, which is faster than the memory that was "
            "measured.")
