"""The check that a sample does not depend on the size and order of its batch.

Two orders of summation differ in the last bits, and an eviction that depends on less may go either way. It is excused if the gap
of its scores is below 1e-6, and only then; from there on the samples differ and are no longer compared. The same holds for a codec
that rounds the other way.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.layout import Site, Step
from ..contract.method import Method
from ..methods.base.evicting import lowest
from ..models.sampling import draw
from .common import Findings, KitRun
from .driver import Onlooker
from .next_token import SAMPLING, Cell

SEEDS, BATCHES = 16, (7, 4, 4, 1)  # a batch of 1 uses other kernels for matrix products
CLOSE = 1e-4  # logits
GAP = 1e-6  # scores


@dataclass
class Pass:
    """The decisions of a step by site: sorted tokens, gaps of scores (rows, kv_heads), codes."""

    contents: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)

    def of_rows(self, rows: Sequence[int]) -> Pass:
        """Return the decisions of some rows."""
        return Pass(*([part[list(rows)] for part in parts] for parts in (self.contents, self.gaps, self.codes)))


@dataclass
class Choices(Onlooker):
    """Records the decisions of a generation; ``scores``: current gaps, (sites, rows, kv_heads)."""

    scores: list[Tensor]
    passes: list[Pass] = field(default_factory=list)
    _codes: list[Tensor] = field(default_factory=list)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        for place, slot in method.slots.items():
            if (place.stack, place.layer) == (site.stack, site.layer) and not slot.bank.codec.exact:
                own = slice(slot.live[0] - k.size(2), slot.live[0])
                self._codes.extend(part[:, :, own].float().flatten(1).clone() for part in (*slot.k, *slot.v))

    def after_end(self, method: Method, step: Step) -> None:
        contents = [slot.visual[..., : slot.live[0]].sort(-1).values for bank in method.banks for slot in bank.slots]
        gaps = [gap for gaps in self.scores for gap in gaps]
        if len(gaps) != len(contents):
            gaps = [torch.full(tokens.shape[:2], torch.inf) for tokens in contents]
        self.passes.append(Pass(contents, gaps, self._codes))
        self.scores.clear()
        self._codes = []


@contextmanager
def choosing(method: Method) -> Iterator[Choices]:
    """Yield an onlooker that records choices by ``lowest`` with their gaps; it excuses no others."""
    scores: list[Tensor] = []

    def recording_lowest(score: Tensor, age: Tensor, count: int) -> Tensor:
        scores.append(gap(score, count).view(-1, *score.shape[-3:-1]))
        return lowest(score, age, count)

    with ExitStack() as patches:
        for name in {cls.__module__ for cls in type(method).__mro__}:  # the module of the method or of a base class such as Scored
            if getattr(sys.modules[name], "lowest", None) is lowest:
                patches.enter_context(patch.object(sys.modules[name], "lowest", recording_lowest))
        yield Choices(scores)


def gap(score: Tensor, count: int) -> Tensor:
    """Return the gap between the last evicted score and the first other one; infinite if all are evicted."""
    ordered = F.pad(score, (0, 1), value=torch.inf).sort(-1).values
    return ordered[..., count] - ordered[..., count - 1]


def compare(
    seeds: Sequence[int], first: Sequence[Pass], second: Sequence[Pass], logits: tuple[Tensor, Tensor], excused: set[int],
) -> Iterator[tuple[int, int, str]]:
    """Yield the differences of two runs of the samples ``seeds``, as (sample, step, words).

    Samples with tied scores are added to ``excused``. Rows are the samples' conditional rows, then their unconditional ones; logits are
    (steps, samples, vocab).
    """
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        distance = (logits[0][index] - logits[1][index]).abs().amax(-1).tolist()
        widest, rounded = _widest(a, b).view(-1, len(seeds)).amax(0).tolist(), _rounded(a, b).view(-1, len(seeds)).any(0).tolist()
        for number, seed in enumerate(seeds):
            if seed in excused:
                continue
            if rounded[number]:
                excused.add(seed)
                continue
            if not distance[number] <= CLOSE:
                yield seed, index, f"logits differ by {distance[number]:.3g}"
            if widest[number] >= GAP:
                yield seed, index, f"other entries kept at a score gap of {widest[number]:.3g}"
            elif widest[number] >= 0:
                excused.add(seed)


def _rounded(a: Pass, b: Pass) -> Tensor:
    """Return which rows have written different codes, (rows,) bool."""
    equal = torch.zeros(a.contents[0].size(0), dtype=torch.bool)
    return torch.stack([equal, *((x != y).flatten(1).any(1) for x, y in zip(a.codes, b.codes, strict=True))]).any(0)


def _widest(a: Pass, b: Pass) -> Tensor:
    """Return the widest score gap of a row that kept different entries, (rows,); −1 if it kept the same."""
    rows = []
    for x, y, *gaps in zip(a.contents, b.contents, a.gaps, b.gaps, strict=True):
        differs = (x != y).any(-1)
        rows.append(torch.minimum(*gaps).masked_fill(~differs, -1).amax(-1))
    return torch.stack(rows).amax(0)


def watched_choices(cell: Cell, seeds: Sequence[int], forced: Tensor | None = None) -> tuple[KitRun, Choices]:
    """Generate these samples and return the run with its decisions."""
    method = cell.tight()
    with choosing(method) as choices:
        return cell.run(method, choices, seeds=seeds, forced=forced, bare=True), choices


def equal_tokens_tie(cell: Cell) -> Findings:
    """A sample of one repeated token keeps the same entries in a batch of 16 and alone.

    In the first layer its entries have equal scores but for rounding, which differs between batches: ties go by a rule, such as age.
    """
    one = torch.full((SEEDS, cell.layout.visual), 3)
    _, first = watched_choices(cell, range(SEEDS), forced=one)
    for sample in (0, SEEDS - 1):
        _, second = watched_choices(cell, [sample], forced=one[:1])
        for index, (together, alone) in enumerate(zip(first.passes, second.passes, strict=True)):
            own = together.of_rows([sample, sample + SEEDS])
            if not torch.equal(own.contents[0], alone.contents[0]):
                yield cell.finding("the entries of a batch of 16", "others", index, 0, seeds=(sample,))
                return


def samples_are_the_same_in_any_batch(cell: Cell) -> Findings:
    """A sample has the same logits, entries and tokens in any batch, unless scores tie to 1e-6.

    The second run is teacher-forced with the first run's tokens; without forcing, the runs would diverge once they sample different
    tokens.
    """
    full, first = watched_choices(cell, range(SEEDS))
    excused, equal, order = set[int](), 0, random.Random(1).sample(range(SEEDS), SEEDS)
    for size in BATCHES:
        seeds = [order.pop() for _ in range(size)]
        part, second = watched_choices(cell, seeds, forced=full.tokens[seeds])
        own = [decisions.of_rows([*seeds, *(seed + SEEDS for seed in seeds)]) for decisions in first.passes]
        for sample, step, difference in compare(seeds, own, second.passes, (full.logits[:, seeds], part.logits), excused):
            yield cell.finding("the decisions of a batch of 16", difference, step, seeds=(sample,))
            return
        key = streams.seeds_tensor(seeds, "cpu")
        drawn = torch.stack([draw(logits, SAMPLING, key, index) for index, logits in enumerate(part.logits)], 1)
        equal += int((drawn == full.tokens[seeds]).all(1).sum())
    if equal < SEEDS - 1:  # the last bits may turn one sample
        yield cell.finding(f"the same tokens of at least {SEEDS - 1} samples", f"of {equal}", seeds=range(SEEDS))
