"""Decoders: how many tokens a forward pass of a next-token model generates and accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Step
from ..core.errors import Unsupported
from ..core.spec import SEQUENTIAL, TOKENS
from .method import SCOPES, Method, still_true
from .planning import Parameters

DECIDING = (*SCOPES, "capacity", "evict", "evict_after", "end_step", "roll_back")  # overriding one of them invalidates an inherited horizon


class Front(NamedTuple):
    """A pass that generates tokens of several lines, known before the generation.

    ``step`` has the position of each token fed. ``takes``: index of the token fed at each position, which differs from the position for a
    substitute. ``draws``: the generated tokens, ascending, from the last tokens fed. ``replaces``: positions whose entries are removed
    before the pass.
    """

    step: Step
    takes: tuple[int, ...] = ()
    draws: tuple[int, ...] = ()
    replaces: tuple[int, ...] = ()


@dataclass
class Decoder(Parameters):
    """Base class of decoders.

    A pass feeds the last accepted token and the drafts after it, and accepts tokens from the left. A decoder knows a method only by
    :meth:`~.method.Method.horizon`, :meth:`~.method.Method.beyond` and :meth:`~.method.Method.roll_back`. Each generation has a new
    decoder; its tensors come from the memory, and only here may a pass be read on the host.

    Class attributes: ``keeps``: the decoder preserves the ``TOKENS`` of sequential decoding (bit for bit in fp32), their ``DISTRIBUTION``,
    or neither (empty). ``same_noise``: it preserves neither but uses the noise of sequential decoding, so images of equal seeds are
    compared. ``scheduled``: its passes follow from the layout, see :meth:`schedule`. ``source`` names the paper, ``footnotes`` are printed
    with its values.

    Attributes of a generation: ``fed`` and ``kept`` are how many tokens each pass generated and accepted; ``most`` is the largest number
    that the current pass may accept.
    """

    keeps: ClassVar[str] = ""
    same_noise: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    source: ClassVar[str] = ""
    footnotes: ClassVar[tuple[str, ...]] = ()

    @property
    def reach(self) -> int:
        """The largest number of tokens that a pass generates."""
        return 1

    @property
    def ahead(self) -> int:
        """The largest number of tokens that a pass generates beyond the method's horizon, always drafts."""
        return 0

    def check(self) -> None:
        """Raise BadParameter for parameters that cannot be used."""

    def check_layout(self, layout: Layout) -> None:
        """Raise BadParameter or Unsupported for a layout that the decoder does not support."""

    def schedule(self, layout: Layout) -> Sequence[Front]:
        """Return all passes of a ``scheduled`` decoder, which needs neither :meth:`propose` nor :meth:`judge`."""
        return ()

    def begin(self, layout: Layout, seeds: Tensor, greedy: bool, memory: Memory) -> None:
        """Start a generation with ``seeds`` (batch,), after the method.

        ``greedy``: take the most probable token.
        """
        self.layout, self.seeds, self.greedy, self.memory = layout, seeds, greedy, memory
        self.fed: list[int] = []
        self.kept: list[int] = []
        self.most = 1

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        """Write drafts to the ``count`` − 1 positions of ``tokens`` from ``accepted`` on, if they are empty.

        ``tokens``: (batch, N).
        """

    def judge(self, accepted: int, logits: Tensor, tokens: Tensor) -> int:
        """Sample ``tokens`` from position ``accepted`` on and return how many are accepted.

        ``logits`` (batch, count, vocab) are the filtered fp32 logits of these positions, each given the tokens before it. The
        result is in 1 … count and the same for all samples; later tokens become drafts.
        """
        raise NotImplementedError

    def note(self, fed: int, accepted: int) -> None:
        """Record how many tokens were generated and accepted by a pass."""
        self.fed.append(fed)
        self.kept.append(accepted)


@dataclass
class Sequential(Decoder):
    """Generates one token per pass: the reference for all other decoders."""

    name = SEQUENTIAL
    keeps = TOKENS
    source = "the baseline"


@dataclass
class Rehearsal(Decoder):
    """Warm-up that runs every pass of a decoder with this ``window``; accepts one token per pass.

    The shape of a pass depends only on the number of accepted tokens, which takes every value here. Its tokens mean nothing.
    """

    window: int = 1
    look_ahead: bool = False

    @property
    def reach(self) -> int:
        return self.window

    @property
    def ahead(self) -> int:
        return self.window - 1 if self.look_ahead else 0

    def judge(self, accepted: int, logits: Tensor, tokens: Tensor) -> int:
        return 1


def check_fronts(decoder: Decoder, method: Method, layout: Layout) -> Sequence[Front]:
    """Return the schedule of a decoder, empty without one.

    Raises BadParameter or Unsupported if the layout or the method does not fit.
    """
    decoder.check_layout(layout)
    if not decoder.scheduled:
        return ()
    if not (method.fronts and still_true("fronts", method, DECIDING)) or method.needs_mass or method.selects:
        raise Unsupported(f"{decoder.name} feeds tokens of incomplete lines, and {method.name} does not run on them.",
                          remedy="Use the method full.")
    return decoder.schedule(layout)


def widest(method: Method, layout: Layout) -> int:
    """Return the largest number of tokens that a decoder may accept at once with a method.

    Works before the method's :meth:`~.method.Method.begin`.
    """
    _resolve(method, layout)
    return max(horizon(method, first) for first in range(layout.visual))


def spare(method: Method, layout: Layout, decoder: Decoder) -> int:
    """Return how many entries above its capacity a layer cache needs for a decoder's look-ahead.

    Works before the method's :meth:`~.method.Method.begin`.
    """
    if not decoder.ahead:
        return 0
    _resolve(method, layout)
    return max(drawn - most for drawn, most in (window(method, decoder, accepted) for accepted in range(1, layout.visual)))


def window(method: Method, decoder: Decoder, accepted: int) -> tuple[int, int]:
    """Return how many tokens the pass after ``accepted`` tokens generates, and how many it may accept."""
    remaining = method.layout.visual - accepted
    most = min(decoder.reach, remaining, horizon(method, accepted - 1))
    return min(decoder.reach, remaining, most + min(decoder.ahead, beyond(method, accepted - 1))), most


def horizon(method: Method, first: int) -> int:
    """Return :meth:`Method.horizon`, or 1 if a derived class invalidates it or keys share ranges."""
    return max(1, method.horizon(first)) if not _shares_ranges(method) and still_true("horizon", method, DECIDING) else 1


def beyond(method: Method, first: int) -> int:
    """Return :meth:`Method.beyond`, or 0 if a derived class invalidates it or keys share ranges."""
    return max(0, method.beyond(first)) if not _shares_ranges(method) and still_true("beyond", method, (*DECIDING, "horizon")) else 0


def _resolve(method: Method, layout: Layout) -> None:
    """Prepare a method for :func:`horizon` before its generation starts."""
    method.resolve(layout)
    method.layout, method.banks = layout, []


def _shares_ranges(method: Method) -> bool:
    return any(bank.codec.grouped for bank in method.banks)
