"""``cachemark export``: results and images in the formats of other programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from .options import (
    FILE,
    FOLDER,
    Integer,
    Line,
    all_of,
    baseline_option,
    npz,
    plugin_option,
    register_option,
    say,
    store_option,
    stored_run_options,
)

Format = Literal["markdown", "latex", "csv", "junit", "figures"]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
samples_option = click.option("--samples", is_flag=True, help="Write one row per raw value instead of one per metric.")
document_options = all_of(click.argument("path", type=click.Path(dir_okay=False, allow_dash=True), default="-"), stored_run_options)
table_options = all_of(
    document_options,
    click.option("--column", "columns", multiple=True, type=Line(),
                 help="Only this column, by the name of its metric, such as kl; repeatable.  [default: latex: those that fit a page, "
                      "`all` for all; markdown: all]"),
    click.option("--method", "methods", multiple=True, type=Line(), help="Only this method and the full cache; repeatable."))
plain_option = click.option("--plain", is_flag=True,
                            help="For a paper: no reference rows, notes as comments, paired differences instead of intervals.")
FORMATS: dict[Format, tuple[Decorator, str]] = {
    "markdown": (table_options, "Write or print the headline tables of a run as Markdown."),
    "latex": (all_of(table_options, plain_option), "Write or print the headline tables of a run as LaTeX (booktabs).\n\n"
                             "Each table has the label `tab:` followed by its title."),
    "csv": (all_of(document_options, samples_option),
            "Write or print the values of a run as CSV.\n\nOne row per case and metric, or per raw value."),
    "junit": (all_of(document_options, baseline_option, register_option),
              "Write or print the verdicts on a run as JUnit XML.\n\nAcknowledged and accepted incidents are skipped, with the decision. "
              "The exit code is not a verdict; use `check` for that."),
    "figures": (all_of(click.argument("path", metavar="[FOLDER]", type=FOLDER, default=Path("figures")), stored_run_options,
                       click.option("--width", default="3.25in", show_default=True, help="Width of a chart: in, cm, mm or pt."),
                       click.option("--format", "kind", type=click.Choice(["svg", "pdf", "png"]), default="svg", show_default=True,
                                    help="Kind of file; pdf and png need the extra plots.")),
                "Write the charts of a run as figures for a paper.\n\nEach method has its own marker, so that figures are readable "
                "in gray."),
}


@click.group()
def export() -> None:
    """Export results and images to other programs."""


def _export(form: Format, path: str | Path, **options: Any) -> None:
    """Write a run to ``path``, or print it for ``-``."""
    from ..workflows.export import csv_lines, export as to

    if form == "csv" and path == "-":  # may be larger than memory
        for part in csv_lines(**options):
            click.echo(part, nl=False)
        return
    exported = to(form, None if path == "-" else path, **options)
    if not exported.files:
        click.echo(exported.text, nl=False)
    for file in exported.files:
        say(f"Written: {file}", err=True)


for form, (form_options, summary) in FORMATS.items():
    export.command(form, help=summary)(form_options(functools.partial(_export, form)))


@export.command()
@stored_run_options
@baseline_option
@click.option("--summary", type=FILE, envvar="GITHUB_STEP_SUMMARY", show_envvar=True, help="Append the summary of the step to this file.")
@click.option("--comment", type=FILE, help="Write the text of a comment on a pull request to this file.")
@register_option
def github(summary: Path | None, comment: Path | None, **options: Any) -> None:
    """Print annotations for GitHub Actions.

    Also writes a summary and a comment. A run without a baseline has no annotations. The exit code is not a verdict; use `check` for that.
    """
    from ..workflows.export import append, put, step_texts

    texts = step_texts(**options)
    if summary is not None:
        say(f"Written: {append(texts.summary, summary)}", err=True)
    if comment is not None:
        say(f"Written: {put(texts.comment, comment, 'Markdown comment')}", err=True)
    for line in texts.annotations:
        click.echo(line)


@export.command()
@click.argument("folder", type=FOLDER, default=Path(".asv/results"))
@store_option
@click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."), show_default=True,
              help="Git repository that contains the commits.")
def asv(folder: Path, store: str, repository: Path) -> None:
    """Write all runs of a store in the format of asv.

    FOLDER is asv's results_dir.  [default: .asv/results]

    `asv publish` then draws them as histories over commits.
    """
    from ..core.errors import NothingMeasured
    from ..workflows.export import asv_results

    written = asv_results(folder, store, repository=repository)
    for reason in written.left_out:
        say(f"Left out: {reason}.", err=True)
    if not written.files:
        raise NothingMeasured(f"No run of the store belongs to a commit of {repository}.",
                              remedy="Name the --repository, or commit before a run.")
    say(f"{written.points} values in {len(written.files)} files below {folder}. Draw them: asv publish")


@export.command()
@click.argument("path", type=FILE)
@click.argument("cases", nargs=-1)
@stored_run_options
@click.option("--model", help="The model, where several have such cases.")
@click.option("--scale", type=Integer(1, 32), default=1, show_default=True, help="Enlarge small images so many times.")
def grid(**options: Any) -> None:
    """Write stored images of cases as one PNG.

    The first row is the full cache; CASES, such as "linear 1/4", follow in this order at the same seeds, each with its name.

    Without CASES the image has all methods. A method's worst seeds are left out; the report has them.
    """
    from ..workflows.export import image_grid

    say(f"Written: {image_grid(**options)}", err=True)


@export.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), callback=npz)
@click.argument("case", default="full")
@stored_run_options
@click.option("--model", default="", help="The model, where several have such a case.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where tokens are decoded.")
@plugin_option
def images(**options: Any) -> None:
    """Write the compared images of a case as a sample batch.

    PATH is an npz file for evaluators such as ADM's; CASE is a label such as "linear 1/4". The images are decoded from stored tokens, so
    the weights of the model are needed.
    """
    from ..workflows.export import image_batch

    say(f"Written: {image_batch(**options)}", err=True)
