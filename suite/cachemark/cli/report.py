"""``cachemark report``: write the HTML page of a run."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from .options import MOST_DAYS, MOST_RUNS, known_option, refuse_alone, stored_run_options


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"))
@stored_run_options
@click.option("--baseline", type=click.Path(path_type=Path), help="Baseline file to compare with.  [default: the accepted one, if any]")
@click.option("--against", type=click.IntRange(1, MOST_RUNS), metavar="RUN", help="Compare with this run of the store instead.")
@click.option("--site", type=click.Path(file_okay=False, path_type=Path),
              help="Write the reports of all runs to this folder instead, with a page that lists them.")
@click.option("--days", type=click.IntRange(1, MOST_DAYS), default=90, show_default=True,
              help="With --site: leave out runs that are older, and remove their pages.")
@click.option("--anew", is_flag=True, help="With --site: rebuild every page, including those that are up to date.")
@known_option
@click.option("--public", is_flag=True, help="Leave out host, user, paths, device numbers and texts of errors.")
def report(
    path: Path, store_url: str, run_id: int | None, baseline: Path | None, against: int | None, site: Path | None, days: int, anew: bool,
    register: Path | None, public: bool,
) -> None:
    """Write the HTML report of a run.

    PATH is one file that needs nothing else. --site DIR makes a static site of all runs, newest first. A nightly job adds its run; a page
    is rebuilt only when its run, a comparison of its plan, its baseline, the incidents, a reached anchor or the code of the report has
    changed.
    """
    from ..workflows.report import report as write_report
    from ..workflows.report import site as write_site

    if against is not None and (baseline is not None or site is not None):
        raise click.UsageError("--against compares with one run: drop --baseline and --site.")
    for option in ("--days", "--anew"):
        refuse_alone(option, "--site", "it is about the pages of a site.")
    if site is not None and click.get_current_context().get_parameter_source("path") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--site writes pages into {site}, and none to {path}. Leave out one of the two.")
    if site is None:
        made_page = write_report(store_url, path, run=run_id, baseline=baseline, against=against, public=public, register=register)
        click.echo(f"Report: {made_page.path}")
        return
    if run_id is not None:
        raise click.UsageError("--site covers all runs; drop --run.")
    made = write_site(store_url, site, baseline=baseline, days=days, fresh=anew, public=public, register=register)
    click.echo(f"Site: {made.index}; {len(made.made)} new pages, {made.removed} removed")
