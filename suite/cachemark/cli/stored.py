"""``cachemark show``, ``list``, ``report``, ``db`` and ``ingest``: reading and maintaining a store."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..core.formatting import size
from ..core.result import JUDGING, Outcome
from ..core.spec import MICRO
from ..core.units import KV, TIME, compared_tokens, metric, of_plug_ins
from ..core.wording import count
from .options import (
    FILE,
    FOLDER,
    MOST_DAYS,
    Integer,
    echo_json,
    echo_rows,
    json_option,
    plugin_option,
    register_option,
    say,
    store_option,
    stored_run_options,
)

if TYPE_CHECKING:
    from ..workflows.list import Kind

RECENT = 20  # runs that `list runs` prints
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


# -- show -------------------------------------------------------------------------------------------------------------
@click.command()
@click.argument("case", required=False)
@stored_run_options
@json_option
def show(case: str | None, store: str, run: int | None, as_json: bool) -> None:
    """Print a run, or one case with its raw samples.

    CASE is a key, the beginning of a key, or a label such as "linear 1/4". A comparison measures a case many times: each outcome is
    printed.
    """
    from ..workflows.results import Run, outcomes_of

    stored = Run(store, run)
    outcomes = outcomes_of(case, stored.outcomes) if case is not None else list(stored.outcomes)
    if as_json:
        echo_json([outcome.to_json() for outcome in outcomes])
    elif case is not None:
        for number, outcome in enumerate(outcomes):
            click.echo("\n" * (number > 0), nl=False)
            _print_case(outcome)
    else:
        record = stored.record
        say(f"Run {record.id}: {record.plan}, {record.state}, {record.started}, {record.environment.machine_class}")
        for outcome in outcomes:
            say(f"  {outcome.case.key}  {outcome.case.model}  {outcome.case.label:<24}  {outcome.status:<12}  {_main_values(outcome)}")


def _main_values(outcome: Outcome) -> str:
    """Return main values as in the report: medians of times and counts, means over seeds of image metrics."""
    names = [TIME, KV, compared_tokens(masked=False, forced=True), compared_tokens(masked=False)]
    names += [own for kind in JUDGING for own in of_plug_ins(outcome.samples, kind)]
    texts = []
    for name in (name for name in names if name in outcome.samples):
        what = "mean" if metric(name).kind in JUDGING else "median"
        texts.append(f"{name} {getattr(outcome, what)(name):.4g} {metric(name).unit}".rstrip() + f" ({what})")
    return "  ".join(texts)


def _print_case(outcome: Outcome) -> None:
    for name, value in outcome.case.to_json().items():
        say(f"{name:>14}  {value}")
    say(f"{'status':>14}  {outcome.status}")
    for name, values in outcome.samples.items():
        mean, median = outcome.mean(name), outcome.median(name)
        say(f"{name:>18}  mean {mean:.6g}  median {median:.6g} {metric(name).unit}  n = {len(values)}")
        say(" " * 20 + " ".join(f"{value:.6g}" for value in values))
    for name, fact in outcome.facts.to_json().items():
        say(f"{name:>18}  {fact}")
    for line in outcome.log.splitlines():
        say(line)


# -- list -------------------------------------------------------------------------------------------------------------
@click.command("list")
@click.argument("kind", type=click.Choice(["models", "methods", "decoders", "metrics", "plans", "runs"]), metavar="KIND")
@store_option
@plugin_option
@click.option("--all", "everything", is_flag=True, help=f"List all runs, not only the newest {RECENT}.")
@click.option("--model", default="", help="Of methods: those that run on this model, then the others with the reason.")
@json_option
def list_(kind: Kind, store: str, plugins: tuple[str, ...], everything: bool, model: str, as_json: bool) -> None:
    """List models, methods, decoders, metrics, plans or runs.

    Brackets give the plug-in or package of an entry. Plans are listed in groups, with the estimated time and what they need.
    The second column of methods says whether the authors have published code.
    """
    from ..workflows.list import listing

    rows = listing(kind, store=store, plugins=plugins, model=model)
    barred = [] if as_json else [row for row in rows if row.get("unsupported_reason")]
    rows = [row for row in rows if row not in barred]
    width = max((len(str(row["name"])) for row in rows), default=0)

    def line(row: dict[str, Any]) -> str:
        origin = f"  [{row['origin']} {row['version']}]" if row.get("origin", "cachemark") != "cachemark" else ""
        cache = f"; cache {size(row['cache_bytes'])} per image in bf16" if row.get("cache_bytes") else ""
        needs = f"{row.get('time', ''):>13}  {row.get('needs', ''):<25}  " if kind == "plans" else ""
        code = f"{str(row.get('authors_code', '')).partition(':')[0] or '–':<11}  " if kind == "methods" else ""
        return f"{row['name']:<{width}}  {needs}{code}{row['summary']}{cache}{origin}"

    if kind == "plans" and not as_json:
        _print_plans(rows, line)
        return
    newest = rows if everything or as_json or kind != "runs" else rows[:RECENT]
    echo_rows(newest, as_json, line, f"No {kind}.")
    for row in barred:
        say(f"{row['name']:<{width}}  cannot run: {row['unsupported_reason']}")
    if kind == "methods" and not as_json:
        seen = max(str(row.get("code_seen", "")) for row in rows)
        say(f"Authors' code as of {seen}. Of methods with none or a README, this version is a reading; but for KeyDiff no other that runs "
            "was found.")
    if len(newest) < len(rows):
        say(f"{count(len(rows) - len(newest), 'older run')}: --all lists them.")


def _print_plans(rows: Sequence[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> None:
    from ..workflows.list import PLAN_GROUPS, PLAN_TIMES

    for group, members in groupby(rows, lambda row: str(row["group"])):
        say(f"{group}: {PLAN_GROUPS.get(group, 'plans of installed packages')}")
        for row in members:
            say(f"  {line(row)}")
    say(f"Times are likely ranges, estimated for {PLAN_TIMES}. On this machine: cachemark price PLAN")


# -- report -----------------------------------------------------------------------------------------------------------
@click.command()
@click.argument("path", type=FILE, default=Path("report.html"))
@stored_run_options
@click.option("--baseline", type=click.Path(path_type=Path), help="Baseline file to compare with.  [default: the accepted one, if any]")
@click.option("--site", type=FOLDER, help="Write the reports of all runs to this folder instead, with a page that lists them.")
@click.option("--days", type=Integer(1, MOST_DAYS), default=90, show_default=True,
              help="With --site: leave out runs that are older, and remove their pages.")
@register_option
@click.option("--public", is_flag=True, help="Leave out host, user, paths, device numbers and texts of errors.")
@click.pass_context
def report(
    context: click.Context, path: Path, store: str, run: int | None, baseline: Path | None, site: Path | None, days: int,
    register: Path | None, public: bool,
) -> None:
    """Write the HTML report of a run.

    PATH is one file that needs nothing else. --site DIR makes a static site of all runs, newest first. A nightly job adds its run; only
    the pages of the ten newest runs are written again.
    """
    from ..workflows.report import report as write_report, site as write_site

    on_command_line = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if site is None:
        if "days" in on_command_line:
            raise click.UsageError("--days needs --site.")
        page = write_report(store, path, run=run, baseline=baseline, public=public, register=register)
        say(f"Report: {page.path}")
        return
    if on_command_line & {"path", "run"}:
        raise click.UsageError("--site writes one page per run of the store. Leave out PATH and --run.")
    made = write_site(store, site, baseline=baseline, days=days, public=public, register=register)
    say(f"Site: {made.index}; {len(made.made)} new pages, {made.removed} removed")


# -- db ---------------------------------------------------------------------------------------------------------------
@click.group()
def db() -> None:
    """Check, back up, merge or prune a store."""


@db.command("check")
@store_option
@click.option("--quick", is_flag=True, help="Look for artifacts without reading them.")
@click.option("--repair", is_flag=True, help="Delete files of killed commands that no outcome names.")
@json_option
def check_store(store: str, quick: bool, repair: bool, as_json: bool) -> None:
    """Check pages, constraints, references and the content of artifacts.

    The exit code is 2 where anything is wrong. Nothing is changed without --repair, and no result with it.
    """
    from ..core.errors import BadStore
    from ..workflows.db import check_store as problems_of, leftovers_of
    from .progress import Ticker

    problems = problems_of(store, Ticker(), quick=quick)
    leftovers = leftovers_of(store, delete=repair)
    echo_rows(problems, as_json, str, "No damage.")
    if leftovers and not as_json:
        say(f"{'Deleted' if repair else 'Left by killed commands:'} {count(len(leftovers), 'file')} that no outcome names."
            + ("" if repair else " --repair deletes them."))
    if problems:
        raise BadStore(f"The store is damaged in {count(len(problems), 'place')}.", remedy="Restore a backup, or name another --store.")


@db.command()
@click.argument("target", type=FILE)
@store_option
def backup(target: Path, store: str) -> None:
    """Copy the database to the new file TARGET.

    Others may write to it meanwhile. The folder of artifacts is not copied.
    """
    from ..workflows.db import backup_store

    backup_store(target, store)
    say(f"Backup: {target}")


@db.command()
@click.argument("sources", nargs=-1, required=True, type=EXISTING)
@store_option
@json_option
def merge(sources: tuple[Path, ...], store: str, as_json: bool) -> None:
    """Add the runs of other stores.

    SOURCES are SQLite files from other machines, each with its folder of artifacts. Runs that are already here are not added again, so an
    interrupted merge can simply be repeated.
    """
    from ..workflows.db import merge_file
    from .progress import Ticker

    rows = []
    for path in sources:
        merged = merge_file(path, store, Ticker())
        rows.append({"from": str(path), "runs": merged.runs, "outcomes": merged.outcomes, "known": merged.known})
        if not as_json:
            added = f"{count(merged.runs, 'run')} and {count(merged.outcomes, 'outcome')} added"
            say(f"{path}: {added}, {count(merged.known, 'run')} already present.")
    if as_json:
        echo_json(rows)


@db.command()
@store_option
@click.option("--nights", default=365, show_default=True, type=Integer(0, 10**6), help="Nights to keep, counted by start date.")
@click.option("--yes", is_flag=True, help="Delete; without this, only count.")
@json_option
def prune(store: str, nights: int, yes: bool, as_json: bool) -> None:
    """Delete the runs of old nights and their artifacts.

    Runs of a baseline, runs with a regression, and runs with results that a kept run reuses are kept.
    """
    from ..workflows.db import prune_store

    pruned = prune_store(store, nights, dry=not yes)
    if as_json:
        echo_json({"done": yes, **vars(pruned)})
        return
    say(f"{'Deleted' if yes else 'Would delete'} {count(pruned.runs, 'run')} with {count(pruned.outcomes, 'outcome')} and "
        f"{count(pruned.files, 'file')} ({pruned.nbytes / 2**20:.1f} MiB); {count(pruned.kept, 'run')} kept.")
    if not yes:
        say("Nothing was changed. Add --yes to do it.")


# -- ingest -----------------------------------------------------------------------------------------------------------
@click.command()
@click.argument("files", nargs=-1, required=True, metavar="[pytest-benchmark] FILES...")
@store_option
def ingest(files: tuple[str, ...], store: str) -> None:
    """Import results of other benchmark programs, each file as one run.

    FILES are JSON of pytest-benchmark (`pytest --benchmark-json FILE`), Google Benchmark, hyperfine (`--export-json FILE`) or CodSpeed, or
    Bencher Metric Format; the format is detected. A quoted pattern such as 'nights/*.json' names several. The store is created if it does
    not exist.
    """
    from ..workflows.db import ingest_files

    for file, ingested in ingest_files(_named(files), store):
        for reason in ingested.skipped:
            say(f"Skipped: {reason}.", err=True)
        if ingested.left_out:
            say(f"Not compared between runs: {'; '.join(ingested.left_out)}.", err=True)
        verb = "was imported before as" if ingested.repeated else "is"
        say(f"{file} {verb} run {ingested.run}, {count(ingested.cases, 'case')}.")


def _named(files: tuple[str, ...]) -> list[Path]:
    """Return the files of names and patterns, without the word before them that named the only format of older versions."""
    words = files[1:] if files[0] == MICRO and len(files) > 1 else files
    paths = dict.fromkeys(path for word in words for path in ([word] if Path(word).exists() else sorted(glob.glob(word)) or [word]))
    if missing := [path for path in paths if not Path(path).exists()]:
        raise click.BadParameter(f"There is no file {missing[0]!r}.", param_hint="FILES")
    return [Path(path) for path in paths]
