"""What `cachemark run` says of a plan's price, and the deadline that its options mean."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import echo_json

if TYPE_CHECKING:
    from ..core.limits import Rates
    from ..plan.deadline import Deadline
    from ..plan.price import PlanPrice
    from ..plan.schema import Plan, Planned
    from ..store.db import Store
    from ..trial.executors.local import Executor
    from .machine_options import Machine

_SPANS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def span(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """``6h``, ``90min`` or ``1h30m`` as seconds."""
    if given is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", given)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", "", given).strip():
        raise click.BadParameter(f"{given!r} is no time; write 6h, 90min or 1h30m.")
    return sum(float(count) * _SPANS[unit] for count, unit in parts)


def moment(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """Seconds from now until ``06:00``, today or tomorrow, or an ISO 8601 moment."""
    if given is None:
        return None
    now = datetime.now().astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", given):
            hour, minute = map(int, given.split(":"))
            end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            end += timedelta(days=end <= now)
        else:
            end = datetime.fromisoformat(given).astimezone()
    except ValueError:
        raise click.BadParameter(f"{given!r} is no moment; write 06:00 or 2030-01-31T06:00.") from None
    if end <= now:
        raise click.BadParameter(f"{given} is past.")
    return (end - now).total_seconds()


def deadline(seconds: list[float], store: Store, machine: Machine, places: Executor) -> Deadline | None:
    """The earlier of the deadlines that were given, or None."""
    if not seconds:
        return None
    from ..plan.deadline import Deadline
    from ..plan.price import price

    here = places.environment(machine.device, machine.threads)

    def priced(planned: Planned) -> tuple[float, bool]:
        found = price(planned, _rates(machine.device, "", planned.case.dtype), store.seconds(planned.case.key, here.machine_class))
        return found.seconds, found.stored

    return Deadline(min(seconds), priced)


def dry_run(plan: Plan, store: Store | None, machine: Machine, on: str, as_json: bool) -> None:
    """Print what a plan costs on this machine, or on a card by name, and run nothing."""
    from ..plan.price import bill, without_missing
    from ..plan.schema import expand
    from ..workflows.measuring import limited

    bare, missing = without_missing(plan)
    best = partial(_rates, machine.device, on)
    todo = limited(expand(bare, "cuda" if on else machine.device), machine.memory_cap)
    left = todo if store is None or on else _left(plan, todo, store, machine)
    _print(plan, todo, left, bill(plan, left, best, _seconds(store, machine, on), missing), on or machine.device, as_json)


@cache
def _rates(device: str, card: str, dtype: str) -> Rates:
    """Measured once where the device is here, else from the card's data sheet."""
    from ..core import limits
    from ..core.errors import Infrastructure
    from ..machine.rates import rates

    if card:
        return limits.gpu(card, dtype)
    found = rates(device, os.cpu_count() or 1, [dtype]).get(dtype)
    if found is None:
        raise Infrastructure(f"The rates of {device} cannot be measured, so nothing can be priced.", remedy="See `cachemark doctor`.")
    return found


def _left(plan: Plan, todo: list[Planned], store: Store, machine: Machine) -> list[Planned]:
    """What is not stored yet."""
    from ..workflows.measuring import decide

    _, decisions = decide(plan, store, machine.device, machine.threads, cases=todo, memory_cap=machine.memory_cap)
    return [decision.planned for decision in decisions if not decision.stored]


def _seconds(store: Store | None, machine: Machine, on: str) -> Callable[[str], float | None]:
    if store is None or on:
        return lambda key: None
    from ..machine.environment import environment

    here = environment(machine.device, machine.threads).machine_class
    return lambda key: store.seconds(key, here)


def _print(plan: Plan, todo: list[Planned], left: list[Planned], cost: PlanPrice, on: str, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for model in dict.fromkeys(p.case.model for p in left):
        own = [p for p in left if p.case.model == model]
        prices = [cost.prices[p.case.key] for p in own]
        rows.append({"model": model, "cases": len(own), "hours": cost.hours(left, model), "from_stored": sum(p.stored for p in prices),
                     "disk": sum(p.disk for p in prices), "memory": max(p.memory for p in prices)})
    total = sum(row["hours"] for row in rows)
    free = shutil.disk_usage(Path.cwd()).free
    if as_json:
        echo_json({"plan": plan.name, "on": on, "cases": len(todo), "to_run": len(left), "hours": total, "models": rows,
                   "missing": cost.missing, "disk_free": free})
        return
    click.echo(f"{plan.name} on {on}: {len(todo)} cases, {len(todo) - len(left)} measured already, {len(left)} to run.")
    click.echo(f"{'':20}{'cases':>6}{'device hours':>14}{'disk':>10}{'memory':>10}  price from")
    for row in rows:
        source = f"stored durations of {row['from_stored']} cases, roofline × 1.5 of {row['cases'] - row['from_stored']}"
        click.echo(f"{row['model']:20}{row['cases']:6}{row['hours']:14.3f}{row['disk'] / 2**20:7.1f} MiB"
                   f"{row['memory'] / 2**30:6.1f} GiB  {source}")
    click.echo(f"In all {total:.2f} device hours and {sum(row['disk'] for row in rows) / 2**20:.1f} MiB of {free / 2**30:.0f} GiB free.")
    for path in cost.missing:
        click.echo(f"Missing: {path}  (priced with random weights)")
