"""What a generation decided, sample by sample, so that two generations in other batches can be compared.

Two orders of summation differ in the last bits, and an eviction that hangs on less than that may go either way. It is excused
where the gap of its scores is below 1e-6, and only there; from then on the sample is another one and is no longer compared.
The same holds for a storage codec: where rounding has turned out otherwise, the sample is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.geometry import Site, Step
from cachemark.cache.method import Method

from .driver import Watch

CLOSE = 1e-4  # logits
GAP = 1e-6  # scores


@dataclass
class Pass:
    """One pass: kept visual tokens, sorted, and the gap of the scores that chose them, per site (rows, kv_heads, …); codes written."""

    held: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)

    def of(self, rows: Sequence[int]) -> Pass:
        """The same for some of the rows."""
        return Pass(*([part[list(rows)] for part in parts] for parts in (self.held, self.gaps, self.codes)))


@dataclass
class Choices(Watch):
    """Watches a generation; ``scores`` collects the gaps of the pass that runs, one tensor (sites, rows, kv_heads) a bank."""

    scores: list[Tensor]
    passes: list[Pass] = field(default_factory=list)
    _codes: list[Tensor] = field(default_factory=list)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        slot = method.slots[site]
        if not slot.bank.codec.exact:
            own = slice(slot.live[0] - k.size(2), slot.live[0])
            self._codes.extend(part[:, :, own].float().flatten(1).clone() for part in (*slot.k, *slot.v))

    def settled(self, method: Method, step: Step) -> None:
        held = [slot.visual[..., : slot.live[0]].sort(-1).values for bank in method.banks for slot in bank.slots]
        chosen = len(self.scores) == len(method.banks)
        gaps = list(torch.cat(self.scores)) if chosen else [torch.full(h.shape[:2], torch.inf) for h in held]
        self.passes.append(Pass(held, gaps, self._codes))
        self.scores.clear()
        self._codes = []


@contextmanager
def choosing(method: Method) -> Iterator[Choices]:
    """The watch for generations of ``method`` within; what it chooses by ``select.lowest`` or as R-KV is seen with its gap.

    A method that chooses by other means has no gaps, so nothing of it is excused.
    """
    module: Any = sys.modules[type(method).__module__]
    scores: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(module, "lowest"):
            lowest = module.lowest

            def noted(score: Tensor, age: Tensor, count: int) -> Tensor:
                scores.append(gap(score, count))
                return lowest(score, age, count)

            patch.setattr(module, "lowest", noted)
        if method.name == "rkv":
            _watch_rkv(patch, module, method, scores)
        yield Choices(scores)


def _watch_rkv(patch: pytest.MonkeyPatch, module: Any, method: Any, scores: list[Tensor]) -> None:
    """R-KV sorts its score itself, site by site: take it from its two terms."""
    importance, redundancy = module.importance, module.redundancy
    seen: list[Tensor] = []

    def noted(k: Tensor) -> Tensor:
        r = redundancy(k)
        i = seen.pop()
        score = method.mix_lambda * i - (1 - method.mix_lambda) * r[..., : i.size(-1)]
        found = gap(score, method.layout.line)[None]
        scores[:] = [torch.cat((*scores, found))]
        return r

    def kept(q: Tensor, k: Tensor) -> Tensor:
        seen.append(importance(q, k))
        return seen[-1]

    patch.setattr(module, "importance", kept)
    patch.setattr(module, "redundancy", noted)


def gap(score: Tensor, count: int) -> Tensor:
    """By how much the last score that goes is below the first that stays."""
    ordered = score.sort(-1).values
    return ordered[..., count] - ordered[..., count - 1]


@dataclass
class Verdict:
    """``faults``: what differs and is not excused. ``excused``: the samples that left the comparison, with the pass."""

    faults: list[str] = field(default_factory=list)
    excused: dict[int, int] = field(default_factory=dict)


def compare(seeds: Sequence[int], first: Sequence[Pass], second: Sequence[Pass], logits: tuple[Tensor, Tensor], verdict: Verdict) -> None:
    """Add to ``verdict`` how two runs of the samples ``seeds`` differ.

    Rows are the samples' conditional rows, then their unconditional ones; logits are (passes, samples, vocab).
    """
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        apart = (logits[0][index] - logits[1][index]).abs().amax(-1)
        for number, seed in enumerate(seeds):
            if seed in verdict.excused:
                continue
            rows = [number, number + len(seeds)]
            mine, theirs = a.of(rows), b.of(rows)
            if any(not torch.equal(x, y) for x, y in zip(mine.codes, theirs.codes, strict=True)):
                verdict.excused[seed] = index
                continue
            if not apart[number] <= CLOSE:
                verdict.faults.append(f"sample {seed}, pass {index}: logits differ by {apart[number]:.3g}")
            _compare_held(seed, index, mine, theirs, verdict)


def _compare_held(seed: int, index: int, mine: Pass, theirs: Pass, verdict: Verdict) -> None:
    for site, (x, y) in enumerate(zip(mine.held, theirs.held, strict=True)):
        differs = (x != y).any(-1) if x.shape == y.shape else torch.ones(x.shape[:2], dtype=torch.bool)
        if not differs.any():
            continue
        widest = float(torch.minimum(mine.gaps[site], theirs.gaps[site])[differs].max())
        if widest < GAP:
            verdict.excused[seed] = index
        else:
            verdict.faults.append(f"sample {seed}, pass {index}, site {site}: other entries kept at a score gap of {widest:.3g}")
