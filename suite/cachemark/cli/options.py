"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from click.core import ParameterSource

from ..core.files import refuse_other
from ..core.threads import default_threads
from ..core.wording import printed
from .endings import note

F = TypeVar("F", bound=Callable[..., Any])
MOST_MEASURED = 50_000  # images of a case
MOST_RUNS, MOST_DAYS, MOST_SECONDS, MOST_MEMORY = 2**53, 36_500, 365 * 24 * 3600.0, 2**50
LONGEST_LINE = 1_000
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine options into one decorator, in the order of the help."""
    return lambda function: functools.reduce(lambda dressed, option: option(dressed), reversed(options), function)


_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


# -- output -----------------------------------------------------------------------------------------------------------
def say(line: str, err: bool = False, to: IO[str] | None = None) -> None:
    """Print one line that may contain foreign text."""
    click.echo(printed(line), to, err=err)


def echo_json(value: Any) -> None:
    """Print a value as indented JSON; dataclasses are objects.

    Characters that act on a terminal, and bytes of names that are not UTF-8, are printed as escapes of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    click.echo(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def echo_rows(rows: Sequence[Any], as_json: bool, line: Callable[[Any], str], none: str) -> None:
    """Print rows as JSON, or one line each; without rows print ``none``."""
    if as_json:
        echo_json(rows)
    else:
        for text in map(line, rows) if rows else [none]:
            say(text)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


# -- types ------------------------------------------------------------------------------------------------------------
class Integer(click.IntRange):
    """An integer between two bounds, in the digits 0 to 9; Python reads others, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_plain_number(self, value, param, ctx), param, ctx)


class Finite(click.FloatRange):
    """A number between two bounds, in the digits 0 to 9; NaN is rejected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parsed = super().convert(_plain_number(self, value, param, ctx), param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if math.isnan(parsed) else parsed


def _plain_number(kind: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        kind.fail(f"{printed(value, 80)!r} is not a number in the digits 0 to 9.", param, ctx)
    return value


class Line(click.ParamType):
    """A text on one line of bounded length, without control characters and CI commands."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if len(value) > LONGEST_LINE or printed(value) != value:
            self.fail(f"{printed(value, 80)!r} is not one line of at most {LONGEST_LINE} characters without control characters and "
                      "CI commands.", param, ctx)
        return str(value)


class TokenGrid(click.ParamType):
    """Rows and columns of tokens, such as 72x54."""

    name = "ROWSxCOLUMNS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"([1-9]\d{0,3})[x×]([1-9]\d{0,3})", value, re.ASCII)
        if match is None:
            self.fail(f"{printed(value, 80)!r} is not rows and columns of tokens; write 72x54.", param, ctx)
        return int(match[1]), int(match[2])


def size(context: click.Context, option: click.Parameter, text: str | None) -> int:
    """Parse ``24GiB`` as bytes; 0 if the option is not given."""
    if text is None:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT])(i?)B", text, re.IGNORECASE | re.ASCII)
    nbytes = float(match[1]) * (1024 if match[3] else 1000) ** ("KMGT".index(match[2].upper()) + 1) if match else 0
    if not 0 < nbytes <= MOST_MEMORY:
        raise click.BadParameter(f"{text!r} is not a size up to {MOST_MEMORY >> 40} TiB; write 24GiB or 512MiB.")
    return int(nbytes)


def writable(context: click.Context, option: click.Parameter, path: Path | None, kind: str = "report") -> Path | None:
    """Check that an output of this kind can be written to this file, before hours of work."""
    if path is None:
        return None
    if not os.path.isdir(path.parent):  # also False for a name that no folder can have
        raise click.BadParameter(f"folder {str(path.parent)[:200]} does not exist. Create it, or use another file.")
    if len(os.fsencode(path.name)) > 255 or not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise click.BadParameter(f"{str(path)[:200]} cannot be written. Use another file.")
    refuse_other(path, kind)
    return path


def image_output(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Check that a PNG or a sample batch can be written to this file, before hours of work."""
    if path is not None and path.suffix.lower() == ".npz":
        return writable(context, option, path, "sample batch")
    return picture(context, option, path, " or .npz")


def npz(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Check that a sample batch can be written to this file."""
    if path is not None and path.suffix.lower() != ".npz":
        raise click.BadParameter(f"{str(path)[:200]} does not end in .npz. Use another name.")
    return writable(context, option, path, "sample batch")


def picture(context: click.Context, option: click.Parameter, path: Path | None, other: str = "") -> Path | None:
    """Check that a PNG can be written to this file, before hours of work."""
    if path is not None and path.suffix.lower() != ".png":
        raise click.BadParameter(f"{str(path)[:200]} does not end in .png{other}. Use another name.")
    return writable(context, option, path, "PNG image")


# -- the store --------------------------------------------------------------------------------------------------------
def _store(context: click.Context, option: click.Parameter, url: str) -> str:
    """Store the option; reject a password, since the process list shows it to every user of the machine."""
    if ":" in url:
        from ..workflows.session import reveals_password

        if reveals_password(url):
            if context.get_parameter_source(str(option.name)) is not ParameterSource.COMMANDLINE:
                return url
            raise click.BadParameter("a password here is shown in the list of processes. Set CACHEMARK_STORE, or use @FILE or ~/.pgpass.")
    note(context, option, url)
    return url


store_option = click.option("--store", default="cachemark.sqlite", show_default=True, envvar="CACHEMARK_STORE", show_envvar=True,
                            callback=_store, help="SQLite file, postgresql+psycopg:// URL, or @FILE that holds one.")
run_option = click.option("--run", type=Integer(1, MOST_RUNS), help="Number of the run.  [default: the newest]")
stored_run_options = all_of(store_option, run_option)

# -- several commands -------------------------------------------------------------------------------------------------
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
baseline_option = click.option("--baseline", type=click.Path(path_type=Path),
                               help="Baseline file.  [default: the accepted one of this plan and machine class]")
register_option = click.option("--incidents", "register", type=FILE, help="Register of incidents, to show decisions about failing rows.")
coverage_option = click.option("--min-coverage", type=Finite(0, 1),
                               help="Fraction of the cases that must be compared.  [default: 0.95, or the comparison's own]")
plugin_option = click.option("--plugin", "plugins", multiple=True, type=click.Path(), callback=note,
                             help="Python file that registers a method, model, decoder or metric; repeatable.")
weights_options = all_of(
    click.option("--weights", default="", help="File, folder or hf:org/repo[@revision][:file] of the model's weights."),
    click.option("--decoder-weights", default="", help="The same of the image tokenizer's weights."),
)
grid_option = click.option("--grid", type=TokenGrid(), help="Rows and columns of tokens, of a model with several aspect ratios.")
fetch_option = click.option("--fetch", is_flag=True, help="Download weights of hf: names that are not in the cache.")
report_option = click.option("--report", "report_path", type=FILE, callback=writable, help="Write the HTML report to this file.")
fresh_option = click.option("--fresh", is_flag=True, help="Run every case, even those already measured.")
pair_options = all_of(
    click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path),
                 help="Repository of the commits.  [default: the one around this package]"),
    plugin_option,
    click.option("--delta", type=Finite(0, 1, min_open=True, max_open=True),
                 help="Smallest relative change to report, e.g. 0.02.  [default: compare: from A/A pairs; bisect: 0.1 on a CPU, 0.02 on a "
                      "GPU, half of the effect between the ends]"),
    click.option("--generations", "images", type=Integer(3, 1_000), default=8, show_default=True,
                 help="Generations per side of a pair that count."),
)


# -- the machine ------------------------------------------------------------------------------------------------------
def machine_options_with(threads: int = 0) -> Callable[[F], F]:
    """Add ``--device`` and related options; the command gets one ``machine``.

    ``threads``: the default of ``--threads``, 0 for that of :class:`~cachemark.workflows.session.Machine`.
    """
    options = all_of(
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to measure."),
        click.option("--threads", type=Integer(1, 4_096), default=threads or default_threads,
                     show_default=True if threads else "$OMP_NUM_THREADS, else all", help="CPU threads of a worker process."),
        click.option("--gpu", "gpus", multiple=True, metavar="UUID",
                     help="With cuda: UUID, its beginning, number, or 'all'; repeatable.  [default: first free]"),
        click.option("--lock-clocks", "clock", type=Integer(0, 10_000), default=0, show_default="leave them alone", metavar="MHZ",
                     help="With cuda: lock the SM clock until the end; needs administrator rights."),
        click.option("--memory-cap", callback=size, metavar="SIZE",
                     help="Limit the memory of a worker process, e.g. 24GiB, to imitate a smaller card."),
    )

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def gathered(**options: Any) -> Any:
            from ..workflows.session import Machine

            fields = {name: options.pop(name) for name in ("device", "threads", "gpus", "clock", "memory_cap")}
            if fields["device"] == "cpu" and (fields["gpus"] or fields["clock"]):
                raise click.UsageError("--gpu and --lock-clocks have no effect with --device cpu. Add --device cuda, or leave them out.")
            return function(machine=Machine(**fields), **options)

        return options(gathered)  # type: ignore[return-value]

    return decorated


machine_options = machine_options_with()
plan_options = all_of(
    click.argument("plan"), store_option, plugin_option,
    click.option("--method", "methods", multiple=True, help="Add a method to every block it can run in; repeatable."), machine_options,
)


# -- money ------------------------------------------------------------------------------------------------------------
def per_hour(context: click.Context, option: click.Parameter, text: str | None) -> float:
    """Parse ``2.49/h`` as a price per hour; 0 if the option is not given."""
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)/h", text, re.ASCII)
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is not a price per hour; write 2.49/h.")
    return float(match[1])


def money(least: float, most: float, price: float) -> str:
    """Return the cost of a range of device hours in brackets, or nothing without a price."""
    return f" ({least * price:,.2f} to {most * price:,.2f} at {price:g}/h)" if price else ""


def thousand(least: float, most: float, price: float) -> str:
    """Return the cost of 1,000 images that take a range of seconds each, or nothing without a price."""
    least, most = (1000 * seconds * price / 3600 for seconds in (least, most))
    return f", {least:,.2f} to {most:,.2f} per 1,000 images" if price else ""


price_option = click.option("--price", callback=per_hour, metavar="PRICE/h", help="Price of one device per hour, e.g. 2.49/h, for costs.")
