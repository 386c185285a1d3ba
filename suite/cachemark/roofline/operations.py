"""Operations of a generation and their roofline time on a device.

No operation is faster than its bytes at the device's bandwidth or its FLOPs at peak FLOP/s, whichever takes longer. The *roofline time* is
their sum. It assumes that everything is read once, and that nothing is launched, waited for or padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..core.limits import Limit, Rates

BYTES = ("weights", "read", "written", "activations", "own")


class Op(NamedTuple):
    """One operation, repeated ``times``; a multiplication and an addition are two ``flops``.

    The other fields are bytes: of ``weights``; of keys and values ``read`` (live ones only) and ``written``; of ``activations`` between its
    products; and of the method's ``own`` reads and writes (scores, moved entries).
    """

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
        """Bytes of one execution."""
        return self.weights + self.read + self.written + self.activations + self.own

    def repeated(self, times: int) -> Op:
        """Return the operation, repeated ``times`` in all."""
        return Op(*self[:-1], times)

    def seconds(self, rates: Rates) -> float:
        """Return the roofline time of one execution."""
        return max(self.nbytes / rates.bandwidth, self.flops / rates.peak_flops)


@dataclass(frozen=True)
class Bill:
    """All operations of one generation of ``batch`` images in ``passes`` passes.

    Image decoding is the part ``decode``.
    """

    ops: tuple[Op, ...]
    batch: int
    passes: int

    @classmethod
    def merged(cls, ops: Iterable[Op], batch: int, passes: int) -> Bill:
        """Merge equal operations into one with more ``times``."""
        times: Counter[Op] = Counter()
        for op in ops:
            times[op.repeated(1)] += op.times
        return cls(tuple(op.repeated(count) for op, count in times.items()), batch, passes)

    def only(self, *parts: str) -> Bill:
        """Return the operations of these parts."""
        return Bill(tuple(op for op in self.ops if op.part in parts), self.batch, self.passes)

    def without(self, *parts: str) -> Bill:
        """Return the operations of all other parts."""
        return Bill(tuple(op for op in self.ops if op.part not in parts), self.batch, self.passes)

    @property
    def parts(self) -> list[str]:
        """Parts in the order of their first occurrence."""
        return list(dict.fromkeys(op.part for op in self.ops))

    @property
    def flops(self) -> int:
        return sum(op.flops * op.times for op in self.ops)

    def moved(self, *kinds: str) -> int:
        """Return the bytes of these kinds, by default of all."""
        return sum(getattr(op, kind) * op.times for op in self.ops for kind in kinds or BYTES)

    def roofline_time(self, rates: Rates) -> float:
        """Return the roofline time of the batch in seconds."""
        return sum(op.seconds(rates) * op.times for op in self.ops)

    def limit(self, rates: Rates) -> Limit:
        """Return the roofline of the generation on a device with these rates."""
        by = {part: self.only(part).roofline_time(rates) for part in self.parts}
        tokens = self.without("decode").roofline_time(rates)
        return Limit(sum(by.values()), tokens, self.moved(), self.flops, rates.bandwidth, rates.peak_flops, by)
