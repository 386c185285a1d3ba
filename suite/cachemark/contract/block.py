"""The parts of a transformer block, as a method may call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from ..cache.layout import Site, Step, Tokens

if TYPE_CHECKING:
    from .method import Method


class Block(Protocol):
    """The parts of a transformer block, as a method may call them."""

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        """Run attention with its gate and residual."""

    def branch(self, tokens: Tokens) -> Tensor:
        """Run the MLP alone, (rows, tokens, width)."""

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        """Add the MLP's output with its gate and residual."""


class Branch(NamedTuple):
    """A branch of a next-scale block.

    ``run`` maps the tokens, all of a scale or some, to the branch's output (rows, tokens, width) before its gate; ``join`` adds such an
    output with gate and residual.
    """

    run: Callable[[Tokens], Tensor]
    join: Callable[[Tokens, Tensor], Tokens]


class ScaleBlock(Block, Protocol):
    """A block of a next-scale model, whose branches can also run one by one."""

    def branches(self, site: Site, step: Step, method: Method) -> Sequence[Branch]:
        """Return its branches in order: attention, attention to the text if there is one, MLP."""
