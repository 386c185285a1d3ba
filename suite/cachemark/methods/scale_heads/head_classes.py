"""The two classes of heads that HACK tells apart, and their budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class HeadClasses:
    """``contextual[layer][head]`` says of every head whether it is contextual, else it is structural."""

    contextual: tuple[tuple[bool, ...], ...]

    @classmethod
    def by_variance(cls, variance: Sequence[Sequence[float]], share: float) -> HeadClasses:
        """The ``share`` of all heads with the lowest variance is contextual; of equal ones the lower layer, then the lower head."""
        pairs = sorted((value, layer, head) for layer, heads in enumerate(variance) for head, value in enumerate(heads))
        few = {pair[1:] for pair in pairs[: round(share * len(pairs))]}
        return cls(tuple(tuple((layer, head) in few for head in range(len(heads))) for layer, heads in enumerate(variance)))

    @property
    def few(self) -> int:
        """Contextual heads of all layers."""
        return sum(map(sum, self.contextual))

    @property
    def pairs(self) -> int:
        """Heads of all layers."""
        return sum(map(len, self.contextual))

    def budgets(self, mean: int, contrast: Fraction, most: int) -> tuple[int, int]:
        """Entries of a contextual and of a structural head, whose mean over all heads is ``mean`` or just below: a contextual one has
        ``contrast`` · ``mean``, unless the others cannot use what is left, since there are only ``most``."""
        many, total = self.pairs - self.few, mean * self.pairs
        large = min(most, (total - self.few * int(contrast * mean)) // many) if many else most
        small = min(most, (total - many * large) // self.few) if self.few else most
        return small, large
