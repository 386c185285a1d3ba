"""A decoder: how many tokens a pass of a next-token model draws, and which of them stay. It stands beside the method, which knows nothing
of it but :meth:`~.method.Method.horizon`, :meth:`~.method.Method.beyond` and :meth:`~.method.Method.roll_back`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout
from ..core.spec import SEQUENTIAL, TOKENS
from .method import SCOPES, Method
from .planning import Knobs

DECIDING = (*SCOPES, "capacity", "evict", "evict_after", "end_step", "roll_back")  # what may make an inherited horizon untrue


@dataclass
class Decoder(Knobs):
    """Accepts tokens from the left. A pass feeds the last accepted token and then drafts of those behind it, which gives the law of each
    place after them. It is made anew for each generation; all that it keeps comes from the memory, and only here may a pass be read on
    the host.

    Class attributes: ``keeps`` says what it keeps of sequential decoding: its ``TOKENS``, each of them in fp32; its ``LAW`` alone, so that
    images are others of the same quality; or neither. ``source`` names its paper; ``footnotes`` are printed with its values; ``later`` are
    knobs that came after values were stored: at their default they stand in no case, so that it is the same case as before. ``fed`` and
    ``kept`` are the tokens that each pass has drawn and those of them that stayed, ``most`` those of the pass that runs that may stay.
    """

    keeps: ClassVar[str] = ""
    source: ClassVar[str] = ""
    footnotes: ClassVar[tuple[str, ...]] = ()
    later: ClassVar[tuple[str, ...]] = ()

    @property
    def reach(self) -> int:
        """The most tokens that a pass may draw."""
        return 1

    @property
    def ahead(self) -> int:
        """The most tokens that a pass may draw behind those that the method lets it keep. They are drafts whatever :meth:`judge` says."""
        return 0

    def check(self) -> None:
        """Raise BadKnob where the knobs cannot be used."""

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        """Start a generation of the samples of ``seeds`` (batch,), after the method has. ``greedy``: the most probable token is drawn."""
        self.layout, self.seeds, self.greedy, self.memory = layout, seeds, greedy, memory
        self.fed: list[int] = []
        self.kept: list[int] = []
        self.most = 1

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        """Write drafts to the ``count`` − 1 places of ``tokens`` (batch, N) from ``accepted`` on that hold none yet."""

    def judge(self, accepted: int, laws: Tensor, tokens: Tensor) -> int:
        """Sample ``tokens`` from position ``accepted`` on and return how many are accepted.

        ``laws`` (batch, count, vocab) are filtered fp32 logits of these positions, each given the tokens before it. The result lies in
        1 … count and is the same for all samples; later tokens become drafts."""
        raise NotImplementedError

    def note(self, fed: int, accepted: int) -> None:
        """Count a pass."""
        self.fed.append(fed)
        self.kept.append(accepted)


@dataclass
class Sequential(Decoder):
    """Draws one token a pass: the loop that every value is compared with."""

    name = SEQUENTIAL
    keeps = TOKENS
    source = "the baseline"


@dataclass
class Rehearsal(Decoder):
    """Draws as many tokens a pass as a decoder of this ``window``, as many of them ``ahead``, and keeps one: behind it every pass that
    the other can run has run once.

    What is fed and how much is live follow from the number of tokens that are known, and here that takes every value. Its tokens are none.
    """

    window: int = 1
    look_ahead: bool = False

    @property
    def reach(self) -> int:
        return self.window

    @property
    def ahead(self) -> int:
        return self.window - 1 if self.look_ahead else 0

    def judge(self, accepted: int, laws: Tensor, tokens: Tensor) -> int:
        return 1


def widest(method: Method, layout: Layout) -> int:
    """The most tokens that a method lets a decoder keep at once on a layout. The method is not begun."""
    _placed(method, layout)
    return max(horizon(method, first) for first in range(layout.visual))


def spare(method: Method, layout: Layout, decoder: Decoder) -> int:
    """Entries above its capacity that a slot of the method holds while a decoder looks ahead. The method is not begun."""
    if not decoder.ahead:
        return 0
    _placed(method, layout)
    return max(drawn - most for drawn, most in (window(method, decoder, accepted) for accepted in range(1, layout.visual)))


def window(method: Method, decoder: Decoder, accepted: int) -> tuple[int, int]:
    """Of the pass that follows ``accepted`` tokens, how many it draws, and the most of them that may stay."""
    remaining = method.layout.visual - accepted
    most = min(decoder.reach, remaining, horizon(method, accepted - 1))
    return min(decoder.reach, remaining, most + min(decoder.ahead, beyond(method, accepted - 1))), most


def horizon(method: Method, first: int) -> int:
    """:meth:`Method.horizon` where the class that says what is evicted and when says it too, else 1: a method derived from one that keeps
    everything may not. Keys that share their ranges with their neighbours cannot be cut off, so there it is 1."""
    return max(1, method.horizon(first)) if _states("horizon", method, DECIDING) else 1


def beyond(method: Method, first: int) -> int:
    """:meth:`Method.beyond` where the class that says all this and the horizon says it too, else 0."""
    return max(0, method.beyond(first)) if _states("beyond", method, (*DECIDING, "horizon")) else 0


def _placed(method: Method, layout: Layout) -> None:
    """Let a method that is not begun be asked."""
    method.resolve(layout)
    method.layout, method.banks = layout, []


def _states(name: str, method: Method, deciding: Sequence[str]) -> bool:
    """True where no class between the one that defines ``name`` and that of the method defines what may make it untrue."""
    if any(bank.codec.grouped for bank in method.banks):
        return False
    for cls in type(method).__mro__:
        if name in vars(cls):
            return True
        if any(other in vars(cls) for other in deciding):
            return False
    return False
