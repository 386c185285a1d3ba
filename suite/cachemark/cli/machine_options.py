"""Options that say on which devices a plan is measured."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(context: click.Context, option: click.Parameter, given: str | None) -> int:
    """``24GiB`` as bytes; 0 where nothing is given."""
    if given is None:
        return 0
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", given)
    unit = next((u for u in UNITS if found and u.lower() == found[2].lower()), None)
    if not found or unit is None or float(found[1]) <= 0:
        raise click.BadParameter(f"{given!r} is no size; write 24GiB or 512MiB.")
    return int(float(found[1]) * UNITS[unit])


def machine_options_with(device: str | None = "cpu", threads: int = os.cpu_count() or 1) -> Callable[[F], F]:
    """Add ``--device`` and its companions, with these defaults, handed over as one ``machine``; no device is an empty name."""
    first = (
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default=device, show_default=device or "that of the newest run",
                     help="Where to measure."),
        click.option("--threads", type=click.IntRange(min=1), default=threads, show_default="all" if threads == os.cpu_count() else True,
                     help="CPU threads of a trial."),
    )

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def gathered(**given: Any) -> Any:
            from dataclasses import fields

            from ..workflows.machines import Machine

            found = {field.name: given.pop(field.name) for field in fields(Machine)}
            return function(machine=Machine(**{**found, "device": found["device"] or ""}), **given)

        for option in reversed((*first, *_OPTIONS)):
            gathered = option(gathered)
        return gathered  # type: ignore[return-value]

    return decorated


_OPTIONS = (
    click.option("--gpu", "gpus", multiple=True, metavar="UUID",
                 help="With cuda: this device (a UUID, its beginning, or a number), or 'all'; repeatable.  [default: the first free one]"),
    click.option("--lock-clocks", "clock", type=click.IntRange(min=0), default=0, show_default="leave them alone", metavar="MHZ",
                 help="With cuda: lock the SM clock; needs administrator rights, and is undone at the end."),
    click.option("--memory-cap", callback=size, metavar="SIZE",
                 help="Limit the memory that a trial may allocate, such as 24GiB, to imitate a smaller card."),
    click.option("--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                 help="Measure on this machine, or on the workers of a Ray cluster."),
    click.option("--address", default="auto", show_default=True, help="With ray: address of the cluster."),
)
machine_options = machine_options_with()
