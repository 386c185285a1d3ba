"""Options that name a card: its data sheet, or rates of one that is not listed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..core.limits import CUSTOM, GPUS, custom
from .options import all_of

F = TypeVar("F", bound=Callable[..., Any])
CARDS = ", ".join(GPUS)
PREFIXES = {"G": 1e9, "T": 1e12, "P": 1e15}


def rate(unit: str) -> Callable[[click.Context, click.Parameter, str | None], float]:
    """Return the parser of ``3.35TB/s`` or ``989TFLOP/s``; 0 if the option is not given."""

    def parsed(context: click.Context, option: click.Parameter, text: str | None) -> float:
        match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,6}})?) ?([GTP]){unit}(?:/s)?", text or "", re.ASCII)
        if text is not None and (match is None or not float(match[1])):
            raise click.BadParameter(f"{text!r} is not a rate; write {'1.8TB/s' if unit == 'B' else '165TFLOP/s'}.")
        return float(match[1]) * PREFIXES[match[2]] if match else 0.0

    return parsed


def card_options(text: str, **settings: Any) -> Callable[[F], F]:
    """Add ``--card``, ``--bandwidth`` and ``--flops``; the command gets one ``card`` for them."""
    options = all_of(
        click.option("--card", metavar="CARD", help=text, **settings),
        click.option("--bandwidth", callback=rate("B"), metavar="RATE", help="Memory bandwidth of --card custom, e.g. 1.8TB/s."),
        click.option("--flops", callback=rate("FLOP"), metavar="RATE", help="Dense 16-bit rate of --card custom, e.g. 165TFLOP/s."),
    )

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def gathered(card: str | None, bandwidth: float, flops: float, **others: Any) -> Any:
            card = card.lower() if card else card
            if card == CUSTOM and not (bandwidth and flops):
                raise click.UsageError("--card custom needs its rates. Add --bandwidth and --flops from its data sheet.")
            if card != CUSTOM and (bandwidth or flops):
                raise click.UsageError("--bandwidth and --flops are of a card that is not listed. Add --card custom.")
            return function(card=custom(bandwidth, flops) if card == CUSTOM else card, **others)

        return options(gathered)  # type: ignore[return-value]

    return decorated
