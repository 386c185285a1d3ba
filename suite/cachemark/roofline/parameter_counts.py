"""Counts of the weights that a token meets in a network of any family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of weights (each one multiplication where it is met) and of numbers.

    ``block``: weights of one block's products. ``between``: numbers per token and block that its products hand to one another
    through memory if all that is elementwise is fused into them. ``logits``: weights between a hidden state and its logits, of which
    there are ``vocab``. ``fed``: weights that make a drawn token an input, once for all branches of guidance. ``row``: weights
    that a row meets once in a generation, ``row_pass``: once in each pass. ``scale``: multiplications per image in every pass but
    the last, between what it drew and what the next is fed.
    ``image()`` decodes one image on the meta device, where nothing is computed but FLOPs can be counted.
    """

    block: int
    between: int
    image: Callable[[], object]
    logits: int = 0
    vocab: int = 0
    fed: int = 0
    row: int = 0
    row_pass: int = 0
    scale: int = 0
