"""``cachemark export``: results and images in the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import Line, all_of, baseline_option, known_option, store_option, stored_run_options

if TYPE_CHECKING:
    from ..workflows.export import Format

document_options = all_of(click.argument("path", type=click.Path(dir_okay=False, allow_dash=True), default="-"), stored_run_options)
table_options = all_of(
    click.option("--column", "columns", multiple=True, type=Line(),
                 help="Only this column, by the name of its metric, such as kl; repeatable.  [default: latex: those that fit a page, "
                      "`all` for all; markdown: all]"),
    click.option("--method", "methods", multiple=True, type=Line(), help="Only this method, beside the full cache; repeatable."))
samples_option = click.option("--samples", is_flag=True, help="Write one row per raw value instead of one per metric.")


@click.group()
def export() -> None:
    """Export results and images to other programs."""


# -- documents --------------------------------------------------------------------------------------------------------
@export.command()
@document_options
@table_options
def markdown(path: str, store_url: str, run_id: int | None, columns: tuple[str, ...], methods: tuple[str, ...]) -> None:
    """Write or print the headline tables of a run as Markdown."""
    _print_or_write("markdown", path, store_url, run_id, columns=columns, methods=methods)


@export.command()
@document_options
@table_options
def latex(path: str, store_url: str, run_id: int | None, columns: tuple[str, ...], methods: tuple[str, ...]) -> None:
    """Write or print the headline tables of a run as LaTeX (booktabs).

    Each table has the label `tab:` followed by its title.
    """
    _print_or_write("latex", path, store_url, run_id, columns=columns, methods=methods)


@export.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("figures"))
@stored_run_options
@click.option("--width", default="3.25in", show_default=True, help="Width of a figure: in, cm, mm or pt.")
def figures(folder: Path, store_url: str, run_id: int | None, width: str) -> None:
    """Write the charts of a run as SVG figures for a paper.

    Each method has its own marker, so that figures are readable in gray.
    """
    from ..workflows.export import export as to

    written = to("figures", folder, store_url, run=run_id, width=width).files
    click.echo(f"{len(written)} files in {folder}.")


# -- data -------------------------------------------------------------------------------------------------------------
@export.command()
@document_options
@samples_option
def csv(path: str, store_url: str, run_id: int | None, samples: bool) -> None:
    """Write or print the values of a run as CSV, one row per case and metric."""
    _print_or_write("csv", path, store_url, run_id, samples=samples)


@export.command()
@click.argument("path", type=click.Path(dir_okay=False))
@stored_run_options
@samples_option
def parquet(path: str, store_url: str, run_id: int | None, samples: bool) -> None:
    """Write the table of `export csv` to PATH as parquet. Needs pyarrow."""
    from ..workflows.export import export as to

    click.echo(f"Written: {to('parquet', path, store_url, run=run_id, samples=samples).files[0]}")


# -- continuous integration -------------------------------------------------------------------------------------------
@export.command()
@document_options
@baseline_option
@known_option
def junit(path: str, store_url: str, run_id: int | None, baseline: Path | None, register: Path | None) -> None:
    """Write or print the verdicts on a run as JUnit XML.

    What was acknowledged or accepted is skipped, with the words of that. The exit code judges nothing; use `check` for that.
    """
    _print_or_write("junit", path, store_url, run_id, baseline=baseline, register=register)


@export.command()
@stored_run_options
@baseline_option
@click.option("--summary", type=click.Path(dir_okay=False, path_type=Path), envvar="GITHUB_STEP_SUMMARY", show_envvar=True,
              help="File to which the summary of the step is appended.")
@click.option("--comment", type=click.Path(dir_okay=False, path_type=Path), help="File for the text of a comment on a pull request.")
@known_option
def github(
    store_url: str, run_id: int | None, baseline: Path | None, summary: Path | None, comment: Path | None, register: Path | None,
) -> None:
    """Print annotations for GitHub Actions, and write a summary and a comment.

    A run without a baseline has no annotations. The exit code judges nothing; use `check` for that.
    """
    from ..workflows.export import put, step_texts

    texts = step_texts(store_url, run=run_id, baseline=baseline, register=register)
    if summary is not None:
        _written(put(texts.summary, summary, append=True))
    if comment is not None:
        _written(put(texts.comment, comment))
    for line in texts.annotations:
        click.echo(line)


@export.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path(".asv/results"))
@store_option
@click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."), show_default=True,
              help="Git repository that contains the commits.")
@click.option("--changed", is_flag=True, help="Count runs of a modified working tree as runs of its commit.")
def asv(folder: Path, store_url: str, repository: Path, changed: bool) -> None:
    """Write all runs of a store in the format of asv.

    FOLDER is asv's results_dir.  [default: .asv/results]

    `asv publish` then draws them as histories over commits.
    """
    from ..core.errors import NothingMeasured
    from ..workflows.export import asv_results

    written = asv_results(folder, store_url, repository=repository, changed=changed)
    for reason in written.left_out:
        click.echo(f"Left out: {reason}.", err=True)
    if not written.files:
        raise NothingMeasured(f"No run of {store_url} belongs to a commit of {repository}.",
                              remedy="Name the --repository, or take runs of a changed working tree too: --changed")
    click.echo(f"{written.points} values in {len(written.files)} files below {folder}. Draw them: asv publish")


# -- images -----------------------------------------------------------------------------------------------------------
@export.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("cases", nargs=-1)
@stored_run_options
@click.option("--model", help="The model, where several have such cases.")
def grid(path: Path, cases: tuple[str, ...], store_url: str, run_id: int | None, model: str | None) -> None:
    """Write stored images of cases as one PNG.

    The full cache stands above CASES, such as "linear 1/4", at the same seeds.

    Without CASES all methods are shown. A method's worst seeds are left out; the report has them.
    """
    from ..workflows.export import image_grid

    _written(image_grid(path, cases, store_url, run=run_id, model=model))


# -- shared -----------------------------------------------------------------------------------------------------------
def _print_or_write(form: Format, path: str, store_url: str, run_id: int | None, **options: Any) -> None:
    from ..workflows.export import export as to

    exported = to(form, None if path == "-" else path, store_url, run=run_id, **options)
    if not exported.files:
        click.echo(exported.text, nl=False)
    for file in exported.files:
        _written(file)


def _written(file: Path) -> None:
    click.echo(f"Written: {file}", err=True)
