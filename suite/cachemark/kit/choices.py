"""Decisions of a generation, sample by sample, so that two generations in other batches can be compared.

Two orders of summation differ in the last bits, and an eviction that hangs on less than that may go either way. It is excused
where the gap of its scores is below 1e-6, and only there; from then on the sample is another one and is no longer compared.
The same holds for a storage codec: where rounding has turned out otherwise, the sample is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.layout import Site, Step
from ..contract.method import Method
from ..methods.base.evicting import lowest
from .driver import Onlooker, slots_of

CLOSE = 1e-4  # logits
GAP = 1e-6  # scores


@dataclass
class Pass:
    """A pass as it was decided: kept visual tokens, sorted, and the gap of the scores that chose them, per site (rows, kv_heads, …); codes
    written."""

    contents: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)

    def of(self, rows: Sequence[int]) -> Pass:
        """Those of some of the rows."""
        return Pass(*([part[list(rows)] for part in parts] for parts in (self.contents, self.gaps, self.codes)))


@dataclass
class Choices(Onlooker):
    """Watches a generation; ``scores`` collects the gaps of the pass that runs, one tensor (sites, rows, kv_heads) a bank."""

    scores: list[Tensor]
    passes: list[Pass] = field(default_factory=list)
    _codes: list[Tensor] = field(default_factory=list)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        for place, slot in slots_of(method).items():
            if (place.stack, place.layer) == (site.stack, site.layer) and not slot.bank.codec.exact:
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
def choosing(method: Method, line: int) -> Iterator[Choices]:
    """The watch for generations of ``method`` within; what it chooses by ``lowest`` or as R-KV is seen with its gap.

    A method that chooses by other means has no gaps, so nothing of it is excused.
    """
    scores: list[Tensor] = []

    def noted(score: Tensor, age: Tensor, count: int) -> Tensor:
        scores.append(gap(score, count))
        return lowest(score, age, count)

    with ExitStack() as patches:
        for name in {cls.__module__ for cls in type(method).__mro__}:  # the method's own module, or that of a base class such as Scored
            if getattr(sys.modules[name], "lowest", None) is lowest:
                patches.enter_context(patch.object(sys.modules[name], "lowest", noted))
        if method.name == "rkv":
            _watch_rkv(patches, sys.modules[type(method).__module__], method.knobs()["mix_lambda"], line, scores)
        yield Choices(scores)


def _watch_rkv(patches: ExitStack, module: Any, mix_lambda: float, line: int, scores: list[Tensor]) -> None:
    """R-KV sorts its score itself, site by site: put it together from its two terms."""
    importance, redundancy = module.importance, module.redundancy
    seen: list[Tensor] = []

    def noted_importance(q: Tensor, k: Tensor) -> Tensor:
        seen.append(importance(q, k))
        return seen[-1]

    def noted_redundancy(k: Tensor) -> Tensor:
        i, r = seen.pop(), redundancy(k)
        score = mix_lambda * i - (1 - mix_lambda) * r[..., : i.size(-1)]
        scores[:] = [torch.cat((*scores, gap(score, line)[None]))]
        return r

    patches.enter_context(patch.object(module, "importance", noted_importance))
    patches.enter_context(patch.object(module, "redundancy", noted_redundancy))


def gap(score: Tensor, count: int) -> Tensor:
    """By how much the last score that goes is below the first that stays; infinite where all go."""
    ordered = F.pad(score, (0, 1), value=torch.inf).sort(-1).values
    return ordered[..., count] - ordered[..., count - 1]


@dataclass
class Agreement:
    """``faults``: what differs and is not excused. ``excused``: the samples that left the comparison, with the pass."""

    faults: list[str] = field(default_factory=list)
    excused: dict[int, int] = field(default_factory=dict)


def compare(seeds: Sequence[int], first: Sequence[Pass], second: Sequence[Pass], logits: tuple[Tensor, Tensor], verdict: Agreement) -> None:
    """Add to ``verdict`` how two runs of the samples ``seeds`` differ.

    Rows are the samples' conditional rows, then their unconditional ones; logits are (passes, samples, vocab).
    """
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        apart = (logits[0][index] - logits[1][index]).abs().amax(-1).tolist()
        widest, rounded = _widest(a, b).view(-1, len(seeds)).amax(0).tolist(), _rounded(a, b).view(-1, len(seeds)).any(0).tolist()
        for number, seed in enumerate(seeds):
            if seed in verdict.excused:
                continue
            if rounded[number]:
                verdict.excused[seed] = index
                continue
            if not apart[number] <= CLOSE:
                verdict.faults.append(f"sample {seed}, pass {index}: logits differ by {apart[number]:.3g}")
            if widest[number] >= GAP:
                verdict.faults.append(f"sample {seed}, pass {index}: other entries kept at a score gap of {widest[number]:.3g}")
            elif widest[number] >= 0:
                verdict.excused[seed] = index


def _rounded(a: Pass, b: Pass) -> Tensor:
    """Which rows have written other codes: (rows,) bool."""
    nothing = torch.zeros(a.contents[0].size(0), dtype=torch.bool)
    return torch.stack([nothing, *((x != y).flatten(1).any(1) for x, y in zip(a.codes, b.codes, strict=True))]).any(0)


def _widest(a: Pass, b: Pass) -> Tensor:
    """The widest score gap at which a row has kept other entries, −1 where it has not: (rows,)."""
    rows = []
    for x, y, *gaps in zip(a.contents, b.contents, a.gaps, b.gaps, strict=True):
        differs = (x != y).any(-1)
        rows.append(torch.minimum(*gaps).masked_fill(~differs, -1).amax(-1))
    return torch.stack(rows).amax(0)
