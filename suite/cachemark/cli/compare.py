"""``cachemark compare``: a paired test of two sides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.verdicts import ENDED
from ..core.wording import count
from .options import (
    MOST_SECONDS,
    MOST_SEED,
    Finite,
    coverage_option,
    echo_json,
    images_option,
    json_option,
    machine_options,
    plugin_option,
    repository_option,
    store_option,
)

if TYPE_CHECKING:
    from ..workflows.compare import PairedComparison
    from ..workflows.pairs import Pair
    from ..workflows.session import Machine


LEAST, MOST = 5, 2_000  # seeds at which images are compared: fewer say nothing, and all their images are held at once


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
@click.option("--only", multiple=True, help="Only this case of the plan, by label; repeatable. Not with --cases.")
@repository_option
@store_option
@plugin_option
@machine_options
@click.option("--delta", type=Finite(0, 1, min_open=True, max_open=True),
              help="Smallest relative change to report, e.g. 0.02.  [default: from A/A pairs]")
@images_option
@click.option("--samples", type=click.IntRange(0, MOST), callback=_samples,
              help=f"Seeds for comparing images if tokens differ: 0, or at least {LEAST}.  [default: the plan's]")
@click.option("--minutes", type=Finite(0, MOST_SECONDS / 60), help="Start no new pair after this many minutes.  [default: no limit]")
@click.option("--aa/--no-aa", default=True, show_default=True,
              help="Also run A/A tests, which give the false-alarm rate.")
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Seed for the order of the sides.")
@coverage_option
@json_option
def compare(
    plan: str, cases: tuple[str, str] | None, commits: tuple[str, str] | None, environments: tuple[str, str] | None, only: tuple[str, ...],
    repository: Path | None, store_url: str, plugin_files: tuple[str, ...], machine: Machine, delta: float | None, images: int,
    samples: int | None, minutes: float | None, aa: bool, seed: int, min_coverage: float | None, as_json: bool,
) -> None:
    """Compare two cases, commits or environments in pairs.

    Every configuration of PLAN is measured in pairs of fresh processes and tested with a known false-alarm rate. If the two sides
    produce different tokens, their images are compared too, seed by seed. Both sides of a pair run on one device, leased and monitored; a
    disturbed pair is measured again. Exit codes: 0 nothing regressed, 1 regressed, 2 usage, 3 more than a tenth of the configurations not
    resolved, 4 nothing or too little measured, 5 infrastructure.
    """
    from ..workflows.compare import Terms
    from ..workflows.compare import compare as measure

    result = measure(
        plan, store_url, cases=cases, commits=commits, environments=environments, only=only, repository=repository, machine=machine,
        plugins=plugin_files, images=images, samples=samples, terms=Terms(delta, minutes, aa, seed, min_coverage), on_pair=_tell,
    )
    if as_json:
        echo_json({"exit_code": result.exit_code, "run": result.run_id, "delta": result.rule.delta, "sees": result.sees,
                   "standing": result.standing, "rows": result.tally.rows})
    else:
        _print(result)
    sys.exit(result.exit_code)


def _tell(pair: Pair, what: str) -> None:
    """Print on standard error that a pair was measured."""
    statuses = "" if pair.ok else f": {pair.before.status}, {pair.after.status}"
    click.echo(f"[{pair.number}] {pair.config}{', images' if what == 'images' else ''}{statuses}", err=True)


def _print(result: PairedComparison) -> None:
    click.echo(f"{ENDED[result.exit_code]}: {result.names[0]} → {result.names[1]}, comparison {result.run_id}. {result.sees}")
    for row in result.tally.rows:
        if row.telling:
            click.echo(f"  {result.tally.word(row)}: {row.label}, {row.metric}: {row.reason}")
    if result.same_tokens:
        click.echo(f"Images of {count(result.same_tokens, 'configuration')}: same tokens, nothing to compare.")
    click.echo(str(result.standing))
