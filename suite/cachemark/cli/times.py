"""Options that say how long a run may take."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

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
