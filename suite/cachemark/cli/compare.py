"""``cachemark compare`` and ``bisect``: paired tests, and the search for the commit of a regression."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..core.verdicts import ENDED
from ..core.wording import count, short_commits
from .options import (
    MOST_SECONDS,
    Finite,
    Integer,
    coverage_option,
    echo_json,
    json_option,
    machine_options,
    pair_options,
    say,
    store_option,
)

if TYPE_CHECKING:
    from ..store.rows import Verdict

LEAST, MOST = 5, 2_000  # seeds for comparing images: fewer cannot be tested, and all their images are in memory at once


def _samples(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    """Refuse numbers of images that are too small to test."""
    if value is not None and 0 < value < LEAST:
        raise click.BadParameter(f"{value} images are too few; use {LEAST} to {MOST}, or 0 for none.")
    return value


@click.command()
@click.argument("plan")
@click.option("--cases", nargs=2, metavar="A B", help="Two cases of the plan, by label, such as \"window 1/2\" \"linear 1/2\".")
@click.option("--commits", nargs=2, metavar="A B", help="Two commits; every case of the plan runs at both.")
@click.option("--env", "environments", nargs=2, metavar="OLD NEW", help="Two Python interpreters; every case runs in both.")
@click.option("--versions", nargs=2, metavar="OLD NEW",
              help="Two versions of the only --plugin: files, or commits of its repository; the cases that use it run with both.")
@click.option("--only", multiple=True, help="Only this case of the plan, by label; repeatable. Not with --cases.")
@store_option
@pair_options
@machine_options
@click.option("--samples", type=Integer(0, MOST), callback=_samples,
              help=f"Seeds for comparing images if tokens differ: 0, or at least {LEAST}.  [default: the plan's]")
@click.option("--minutes", type=Finite(0, MOST_SECONDS / 60), help="Start no new pair after this many minutes.  [default: no limit]")
@click.option("--aa/--no-aa", default=True, show_default=True, help="Also run A/A tests, which give the false-alarm rate.")
@coverage_option
@json_option
def compare(delta: float | None, minutes: float | None, aa: bool, min_coverage: float | None, as_json: bool, **sides: Any) -> None:
    """Compare two cases, commits, environments or versions of a plug-in in pairs.

    Every configuration of PLAN is measured in pairs of fresh processes and tested with a known false-alarm rate. If the two sides
    produce different tokens, their images are compared too, seed by seed. Both sides of a pair run on one device, leased and monitored; a
    disturbed pair is measured again. Exit codes: 0 nothing regressed, 1 regressed, 2 usage, 3 more than a tenth of the configurations not
    resolved, 4 nothing or too little measured, 5 infrastructure.
    """
    from ..workflows.compare import Terms, compare as measure

    result = measure(terms=Terms(delta, minutes, aa, min_coverage=min_coverage), **sides)
    if as_json:
        echo_json({"exit_code": result.exit_code, "run": result.run_id, "delta": result.rule.delta, "sees": result.sees,
                   "standing": result.standing, "rows": result.tally.rows})
    else:
        say(f"{ENDED[result.exit_code]}: {' → '.join(map(short_commits, result.names))}, comparison {result.run_id}. {result.sees}")
        for row in result.tally.rows:
            if row.telling:
                say(f"  {result.tally.word(row)}: {row.label}, {row.metric}: {row.reason}")
        if result.same_tokens:
            say(f"Images of {count(result.same_tokens, 'configuration')}: same tokens, nothing to compare.")
        say(str(result.standing))
    raise SystemExit(result.exit_code)


@click.command()
@click.argument("case")
@click.option("--plan", required=True, help="Plan with the case.")
@click.option("--good", required=True, help="Good commit.")
@click.option("--bad", required=True, help="Later commit that is worse.")
@pair_options
@machine_options
@json_option
def bisect(as_json: bool, **search: Any) -> None:
    """Find the commit that made a case worse.

    CASE is the label of a case of the plan. The ends are compared first; then git bisect compares each commit with the good end in
    pairs. A commit that does not run, or whose comparison is inconclusive, is skipped. Exit codes: 0 found, 3 the ends do not differ
    or skipped commits leave several.
    """
    from ..workflows.bisect import bisect as find_commit

    began = time.monotonic()
    result = find_commit(on_row=_print_verdict, **search)
    seconds = time.monotonic() - began
    if as_json:
        echo_json({**asdict(result), "seconds": round(seconds, 1)})
    else:
        if result.commit:
            say(f"First bad commit: {result.commit[:12]}")
        elif result.candidates:
            say(f"Skipped commits leave {len(result.candidates)}: {', '.join(commit[:12] for commit in result.candidates)}")
        say(f"{result.case}: {result.effect}")
        say(f"{result.pairs} pairs, {seconds / 60:.1f} minutes.")
    raise SystemExit(0 if result.commit else 3)


def _print_verdict(commit: str, row: Verdict) -> None:
    """Print a verdict on a commit on standard error."""
    if row.telling:
        say(f"{commit[:12]}  {row.verdict}: {row.metric}: {row.reason}", err=True)
