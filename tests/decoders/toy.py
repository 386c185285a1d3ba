"""A table of conditionals over three letters and five positions, to count decoded words."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout
from cachemark.contract.decoder import Decoder

LETTERS, PLACES = 3, 5
LAYOUT = Layout("next-token", (1,), 9, PLACES, 1, 1, 1, 1)
WORDS = torch.tensor(list(itertools.product(range(LETTERS), repeat=PLACES)))


def tables(seed: int) -> list[Tensor]:
    """Return, per position, logits (prefixes, letters) given every prefix."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(LETTERS**place, LETTERS, generator=made) for place in range(PLACES)]


CONDITIONALS, BEFORE = tables(1), tables(2)


def numbered(tokens: Tensor) -> Tensor:
    """Return the number of each prefix (batch,) of tokens (batch, length)."""
    return (tokens * LETTERS ** torch.arange(tokens.size(1) - 1, -1, -1)).sum(1)


def distribution(known: int, count: int, tokens: Tensor, edge: int = 0) -> Tensor:
    """Return log-probabilities (batch, count, letters) from ``known`` on; those from ``edge`` on are others until a method has evicted."""
    logits = ((BEFORE if known < edge <= at else CONDITIONALS)[at][numbered(tokens[:, :at])] for at in range(known, known + count))
    return torch.stack(list(logits), 1).log_softmax(-1)


def most(known: int, count: int, edge: int) -> int:
    """Return the most tokens of a pass that may be accepted: none beyond an ``edge`` not reached yet."""
    return min(count, edge - known) if known < edge else count


def expected() -> Tensor:
    each = torch.stack([CONDITIONALS[at].softmax(-1)[numbered(WORDS[:, :at]), WORDS[:, at]] for at in range(PLACES)])
    return each.double().prod(0)


@dataclass
class Drawn:
    """Words of many generations (images, positions), ordered by seed, and the passes of each."""

    words: Tensor
    passes: Tensor


def drawn(make: Callable[[], Decoder], seeds: Tensor, together: int = 1, edge: int = 0) -> Drawn:
    """Decode a word per seed, in generations of ``together`` images; those at the same position run in one batch."""
    decoder = make()
    decoder.begin(LAYOUT, seeds, greedy=False, memory=Memory())
    result = Drawn(torch.empty(len(seeds), PLACES, dtype=torch.int64), torch.zeros_like(seeds))
    _go_on(decoder, 0, 1, torch.zeros(len(seeds), PLACES, dtype=torch.int64), torch.arange(len(seeds)), together, edge, result)
    return result


def _go_on(decoder: Decoder, known: int, count: int, tokens: Tensor, images: Tensor, together: int, edge: int, result: Drawn) -> None:
    decoder.most = most(known, count, edge)
    decoder.judge(known, distribution(known, count, tokens, edge), tokens)
    accepted = (reached(decoder) - known).clamp(max=decoder.most).view(-1, together).amin(1).repeat_interleave(together)
    for some in accepted.unique().tolist():
        rows = (accepted == some).nonzero()[:, 0]
        own, word = part(decoder, rows), tokens[rows]
        own.note(count, some)
        behind = known + some
        if behind == PLACES:
            result.words[images[rows]] = word
            result.passes[images[rows]] = len(own.kept)
            continue
        wide = min(own.reach, PLACES - behind)
        own.propose(behind, wide, word)
        _go_on(own, behind, wide, word, images[rows], together, edge, result)


def reached(decoder: Decoder) -> Tensor:
    """Return the decided positions of each image."""
    return getattr(decoder, "reached", decoder.final)  # type: ignore[attr-defined]


def part(decoder: Decoder, rows: Tensor) -> Decoder:
    """Return the decoder of some of the images."""
    own = copy.copy(decoder)
    for name, value in vars(decoder).items():
        if isinstance(value, Tensor):
            setattr(own, name, value[rows])
        elif isinstance(value, list):
            setattr(own, name, value[:])
    own.memory = Memory()
    return own


def off(words: Tensor) -> float:
    """Return how many standard deviations χ² is above its mean, over words expected at least eight times."""
    return deviation(numbered(words).bincount(minlength=len(WORDS)).double(), expected() * len(words))


def deviation(counts: Tensor, frequencies: Tensor) -> float:
    """Return the same of counts and expected frequencies."""
    common = frequencies >= 8
    pooled = [torch.cat((each[common], each[~common].sum()[None])) for each in (counts, frequencies)]
    cells = int((pooled[1] > 0).sum())
    chi = float(((pooled[0] - pooled[1]) ** 2 / pooled[1]).nan_to_num().sum())
    return (chi - (cells - 1)) / (2 * (cells - 1)) ** 0.5
