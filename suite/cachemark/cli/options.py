"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..core.wording import printed
from .remedies import note, noted

F = TypeVar("F", bound=Callable[..., Any])
MOST_RUNS, MOST_THREADS, MOST_MHZ, MOST_MEMORY, MOST_IMAGES, MOST_SEED = 2**53, 4_096, 10_000, 2**50, 1_000, 2**32 - 1
MOST_DAYS = 36_500
MOST_SECONDS = 365 * 24 * 3600.0
LONGEST_LINE = 1_000

DEFAULT_STORE = "cachemark.sqlite"
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator, in the order of the help."""
    return lambda function: functools.reduce(lambda dressed, option: option(dressed), reversed(options), function)


def given_options() -> list[str]:
    """Return the first names of the options on the command line."""
    context = click.get_current_context()
    return [option.opts[0] for option in context.command.params
            if isinstance(option, click.Option) and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE]


def refuse_together(unused: Mapping[str, Sequence[str]]) -> None:
    """Refuse options that another option makes ineffective. ``unused``: by that option."""
    present = given_options()
    for work, ignored in unused.items():
        if work in present and (idle := [name for name in ignored if name in present]):
            raise click.UsageError(f"{' and '.join(idle)} cannot be combined with {work}. Leave out {work}, or {' and '.join(idle)}.")


def refuse_alone(option: str, work: str, otherwise: str) -> None:
    """Refuse an option that has no effect without ``work``; ``otherwise`` states the alternative."""
    present = given_options()
    if option in present and work not in present:
        raise click.UsageError(f"{option} belongs to {work}. Add that, or leave {option} out: {otherwise}")


def echo_json(value: Any) -> None:
    """Print a value as indented JSON; dataclasses are objects."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def echo_rows(rows: Sequence[Any], as_json: bool, line: Callable[[Any], str], none: str) -> None:
    """Print rows as JSON, or one line each; without rows print ``none``."""
    if as_json:
        echo_json(rows)
    else:
        click.echo("\n".join(printed(line(row)) for row in rows) if rows else none)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


# -- the store --------------------------------------------------------------------------------------------------------
def _store_url(context: click.Context, option: click.Parameter, url: str) -> str:
    """Return the URL or path, or the URL in the given @FILE.

    A password on the command line is refused, since every user of the machine can read it in the list of processes.
    """
    note(context, option, url)
    if url.startswith("@"):
        url = _secret_file(Path(url[1:]))
    elif without_password(url) != url and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        raise click.BadParameter("a password here can be read in the list of processes. Put the URL into CACHEMARK_STORE, or into a file "
                                 "that only you can read: --store @FILE")
    return url


def without_password(store: str) -> str:
    """Return a store for printing, with the password of a URL hidden."""
    if "://" not in store:
        return store
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(store).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return store.partition("://")[0] + "://…"


def _secret_file(path: Path) -> str:
    """Return the first line of a file that only its owner can read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if mode & 0o077:
        raise click.BadParameter(f"{path} can be read by others (mode {mode & 0o777:o}). Run: chmod 600 '{path}'")
    if not text.strip():
        raise click.BadParameter(f"{path} is empty.")
    return text.strip().splitlines()[0]


store_option = click.option("--store", "store_url", default=DEFAULT_STORE, show_default=True, envvar="CACHEMARK_STORE", show_envvar=True,
                            callback=_store_url, help="SQLite file, a postgresql+psycopg:// URL, or @FILE that holds one.")


class Finite(click.FloatRange):
    """A number between two bounds; NaN is rejected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parsed = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if math.isnan(parsed) else parsed


class Line(click.ParamType):
    """A text on one line of bounded length, without control characters and CI commands."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if len(value) > LONGEST_LINE:
            self.fail(f"a text of {len(value)} characters; give at most {LONGEST_LINE}.", param, ctx)
        if printed(value) != value:
            self.fail(f"{printed(value)!r} holds line breaks, control characters or the beginning of a CI command.", param, ctx)
        return str(value)


run_option = click.option("--run", "run_id", type=click.IntRange(1, MOST_RUNS), help="Number of the run.  [default: the newest]")
stored_run_options = all_of(store_option, run_option)

# -- measuring and judging --------------------------------------------------------------------------------------------
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
baseline_option = click.option("--baseline", type=click.Path(path_type=Path),
                               help="Baseline file.  [default: the accepted one of this plan and machine class]")
known_option = click.option("--incidents", "register", type=click.Path(dir_okay=False, path_type=Path),
                            help="Register of incidents, to show decisions about failing rows.")
coverage_option = click.option("--min-coverage", type=Finite(0, 1),
                               help="Fraction of the cases that must be compared.  [default: 0.95, or the comparison's own]")
plugin_option = click.option("--plugin", "plugin_files", multiple=True, type=click.Path(), callback=noted,
                             help="Python file that registers a method, model, decoder or metric; repeatable.")
repository_option = click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path),
                                 help="Repository of the commits.  [default: the one around this package]")
images_option = click.option("--images", type=click.IntRange(3, MOST_IMAGES), default=8, show_default=True,
                             help="Generations per side of a pair that count.")


# -- the machine ------------------------------------------------------------------------------------------------------
def size(context: click.Context, option: click.Parameter, text: str | None) -> int:
    """Parse ``24GiB`` as bytes; 0 if the option is not given."""
    if text is None:
        return 0
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = next((u for u in UNITS if match and u.lower() == match[2].lower()), None)
    if not match or unit is None or not (nbytes := float(match[1]) * UNITS[unit]) > 0:
        raise click.BadParameter(f"{text!r} is not a size; write 24GiB or 512MiB.")
    if not match[2] and nbytes < UNITS["MiB"]:
        raise click.BadParameter(f"{text!r} would be bytes. Write the unit: {match[1]}GiB or {match[1]}MiB.")
    if nbytes > MOST_MEMORY:
        raise click.BadParameter(f"{text!r} is more than {MOST_MEMORY >> 40} TiB.")
    return int(nbytes)


_OPTIONS = (
    click.option("--gpu", "gpus", multiple=True, metavar="UUID",
                 help="With cuda: UUID, its beginning, number, or 'all'; repeatable.  [default: first free]"),
    click.option("--lock-clocks", "clock", type=click.IntRange(0, MOST_MHZ), default=0, show_default="leave them alone", metavar="MHZ",
                 help="With cuda: lock the SM clock until the end; needs administrator rights."),
    click.option("--memory-cap", callback=size, metavar="SIZE",
                 help="Limit the memory of a worker process, e.g. 24GiB, to imitate a smaller card."),
    click.option("--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                 help="Measure here, or on the workers of a Ray cluster."),
    click.option("--address", default="auto", show_default=True, help="With ray: address of the cluster."),
)


def machine_options_with(device: str | None = "cpu", threads: int = os.cpu_count() or 1) -> Callable[[F], F]:
    """Add ``--device`` and related options with these defaults; the command gets one ``machine``."""
    first = (
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default=device,
                     show_default="device of the newest run" if device is None else True, help="Where to measure."),
        click.option("--threads", type=click.IntRange(1, MOST_THREADS), default=threads,
                     show_default="all" if threads == os.cpu_count() else True, help="CPU threads of a worker process."),
    )

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def gathered(**options: Any) -> Any:
            from ..workflows.session import Machine

            fields = {field.name: options.pop(field.name) for field in dataclasses.fields(Machine)}
            _refuse_idle(str(fields["device"]), str(fields["executor"]))
            return function(machine=Machine(**{**fields, "device": fields["device"] or ""}), **options)

        return all_of(*first, *_OPTIONS)(gathered)  # type: ignore[return-value]

    return decorated


def _refuse_idle(device: str, executor: str) -> None:
    """Refuse options on GPUs or a cluster that have no effect with this device or executor."""
    present = given_options()
    if device == "cpu" and (idle := [name for name in ("--gpu", "--lock-clocks") if name in present]):
        raise click.UsageError(f"{' and '.join(idle)} cannot be combined with --device cpu, where this would be measured. "
                               f"Add --device cuda, or leave out {' and '.join(idle)}.")
    if executor == "local" and "--address" in present:
        raise click.UsageError("--address belongs to --executor ray, and this would be measured here. Add that, or leave --address out.")


machine_options = machine_options_with()


# -- plans ------------------------------------------------------------------------------------------------------------
_SPANS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def span(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse ``6h``, ``90min`` or ``1h30m`` as seconds."""
    if text is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", "", text).strip():
        raise click.BadParameter(f"{text!r} is not a time; write 6h, 90min or 1h30m.")
    seconds = sum(float(number) * _SPANS[unit] for number, unit in parts)
    if seconds > MOST_SECONDS:
        raise click.BadParameter(f"{text!r} is more than {MOST_SECONDS / _SPANS['d']:g} days.")
    return seconds


def moment(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds until ``06:00``, today or tomorrow, or until an ISO 8601 moment."""
    if text is None:
        return None
    now = datetime.now().astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", text):
            hour, minute = map(int, text.split(":"))
            end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            end += timedelta(days=end <= now)
        else:
            end = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # the latter for a time zone that leads out of the calendar
        raise click.BadParameter(f"{text!r} is not a moment; write 06:00 or 2030-01-31T06:00.") from None
    if end <= now:
        raise click.BadParameter(f"{text} is in the past.")
    if (seconds := (end - now).total_seconds()) > MOST_SECONDS:
        raise click.BadParameter(f"{text} is more than {MOST_SECONDS / _SPANS['d']:g} days from now.")
    return seconds


def writable(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Check that a file can be written, before hours of work."""
    if path is None:
        return None
    folder = path.parent
    if not os.path.isdir(folder):  # also False for a name that no folder can have
        raise click.BadParameter(f"folder {str(folder)[:200]} does not exist. Create it, or use another file.")
    if len(os.fsencode(path.name)) > 255 or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise click.BadParameter(f"{str(path)[:200]} cannot be written. Use another file.")
    return path


fresh_option = click.option("--fresh", is_flag=True, help="Run every case, even those already measured.")
report_option = click.option("--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), callback=writable,
                             help="Write the HTML report to this file.")
plan_options = all_of(
    click.argument("plan"), store_option, plugin_option,
    click.option("--method", "methods", multiple=True,
                 help="Add a method to every block it can run in; repeatable."),
    machine_options,
)
