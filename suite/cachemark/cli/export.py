"""``cachemark export``: results and images in the formats of other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import existing, plugin_option, run_option, store_option

if TYPE_CHECKING:
    import pandas as pd

    from ..core.result import Outcome
    from ..gate.baseline_check import Comparison
    from ..report.view.report_view import ReportView
    from ..store.rows import RunRecord

PATH = click.Path(dir_okay=False, allow_dash=True)
path_argument = click.argument("path", type=PATH, default="-")
baseline_option = click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
                               help="Baseline file.  [default: the accepted one of this plan and machine class]")
samples_option = click.option("--samples", is_flag=True, help="One row for each raw value instead of each metric.")


@click.group()
def export() -> None:
    """Hand results and images to other programs."""


# -- documents --------------------------------------------------------------------------------------------------------
@export.command()
@path_argument
@store_option
@run_option
def markdown(path: str, store_url: str, run_id: int | None) -> None:
    """Write the headline tables of a run as Markdown to PATH, or print them."""
    from ..export.markdown import markdown as text
    from ..export.tables import tables

    _put(path, text(tables(_view(store_url, run_id))))


@export.command()
@path_argument
@store_option
@run_option
def latex(path: str, store_url: str, run_id: int | None) -> None:
    """Write the headline tables of a run as LaTeX (booktabs) to PATH, or print them."""
    from ..export.latex import latex as text
    from ..export.tables import tables

    _put(path, text(tables(_view(store_url, run_id))))


@export.command("methods-text")
@path_argument
@store_option
@run_option
@click.option("--latex", "as_latex", is_flag=True, help="Escape it for LaTeX.")
def methods_text(path: str, store_url: str, run_id: int | None, as_latex: bool) -> None:
    """Write how a run was measured, as a paragraph of a paper with every setting, to PATH, or print it."""
    from ..export.escape import for_latex
    from ..export.methods_text import methods_text as text

    said = text(_view(store_url, run_id))
    _put(path, "\n\n".join(map(for_latex, said.strip().split("\n\n"))) + "\n" if as_latex else said)


@export.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("figures"))
@store_option
@run_option
@click.option("--format", "formats", default="pdf,svg", show_default=True, help="Formats, separated by commas: pdf, svg.")
@click.option("--width", default="3.25in", show_default=True, help="Width of a figure: in, cm, mm or pt.")
def figures(folder: Path, store_url: str, run_id: int | None, formats: str, width: str) -> None:
    """Write the charts of a run to FOLDER as figures of a paper.  [default: figures]

    PDF files have their fonts embedded; a method has a shape of its own, so that they can be read in grey.
    """
    from ..export import figures as files

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    written = files.write(_view(store_url, run_id), folder, wanted, width)
    click.echo(f"{len(written)} files in {folder}.")


# -- data -------------------------------------------------------------------------------------------------------------
@export.command()
@path_argument
@store_option
@run_option
@samples_option
def csv(path: str, store_url: str, run_id: int | None, samples: bool) -> None:
    """Write the figures of a run to PATH, or print them: one row for each case and metric."""
    from ..export import frames

    _put(path, frames.csv(_frame(store_url, run_id, samples)))


@export.command()
@click.argument("path", type=click.Path(dir_okay=False))
@store_option
@run_option
@samples_option
def parquet(path: str, store_url: str, run_id: int | None, samples: bool) -> None:
    """Write what `export csv` writes to PATH as parquet. Needs pyarrow."""
    from ..export import frames

    click.echo(f"Written: {frames.parquet(_frame(store_url, run_id, samples), path)}")


# -- continuous integration -------------------------------------------------------------------------------------------
@export.command()
@path_argument
@store_option
@run_option
@baseline_option
def junit(path: str, store_url: str, run_id: int | None, baseline_path: Path | None) -> None:
    """Write a run compared with a baseline as JUnit XML to PATH, or print it. The exit code judges nothing; `check` does."""
    from ..export.junit import junit as text

    with existing(store_url) as store:
        run = store.run(run_id)
        outcomes = store.outcomes(run.id)
    found = _compared(run, outcomes, baseline_path, needed=True)
    assert found is not None
    _put(path, text(found, run.plan))


@export.command()
@store_option
@run_option
@baseline_option
@click.option("--summary", type=click.Path(dir_okay=False, path_type=Path), envvar="GITHUB_STEP_SUMMARY", show_envvar=True,
              help="File to which the summary of the step is appended.")
@click.option("--comment", type=click.Path(dir_okay=False, path_type=Path), help="File for the text of a comment on a pull request.")
def github(store_url: str, run_id: int | None, baseline_path: Path | None, summary: Path | None, comment: Path | None) -> None:
    """Print annotations for GitHub Actions, and write a step's summary and a pull request's comment.

    A run without a baseline has no annotations. The exit code judges nothing; `check` does.
    """
    from ..export import github as text

    with existing(store_url) as store:
        run = store.run(run_id)
        outcomes = store.outcomes(run.id)
    found, view = _compared(run, outcomes, baseline_path), _built(run, outcomes)
    if summary is not None:
        _put(str(summary), text.summary(view, found), append=True)
    if comment is not None:
        _put(str(comment), text.comment(view, found))
    for line in text.workflow_commands(found) if found else ():
        click.echo(line)


@export.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path(".asv/results"))
@store_option
@click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."), show_default=True,
              help="Git repository that the commits are in.")
@click.option("--changed", is_flag=True, help="Take runs of a changed working tree for runs of its commit.")
def asv(folder: Path, store_url: str, repository: Path, changed: bool) -> None:
    """Write all runs of a store to FOLDER, the results_dir of asv.  [default: .asv/results]

    `asv publish` then draws them as histories over commits.
    """
    from ..core.errors import NothingMeasured
    from ..export import asv as files

    with existing(store_url) as store:
        written = files.write(store, folder, repository, changed=changed)
    for reason in written.left_out:
        click.echo(f"Left out: {reason}.", err=True)
    if not written.files:
        raise NothingMeasured(f"No run of {store_url} belongs to a commit of {repository}.",
                              remedy="Name the --repository, or take runs of a changed working tree too: --changed")
    click.echo(f"{written.points} figures in {len(written.files)} files below {folder}. Draw them: asv publish")


# -- images -----------------------------------------------------------------------------------------------------------
@export.command()
@click.argument("plan")
@click.argument("case")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@plugin_option
@click.option("--model", help="Which model, where several have a case of that name.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to make them.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all", help="CPU threads.")
@click.option("--compressed", is_flag=True, help="Deflate them: a smaller file, and a slower one.")
def npz(
    plan: str, case: str, path: Path, plugin_files: tuple[str, ...], model: str | None, device: str, threads: int, compressed: bool
) -> None:
    """Make the quality images of CASE, such as "linear 1/4", of PLAN once more and write them to PATH.

    ``arr_0``, bytes (N, H, W, 3), is what evaluators of image generators read, such as that of guided-diffusion.
    """
    import torch

    from ..core import plugins
    from ..core.errors import unknown
    from ..export import npz as file
    from ..plan import schema as plans
    from ..plan.expand import expand
    from ..trial.child.measure import quality_images

    for name in plugin_files:
        plugins.load(name)
    torch.set_num_threads(threads)
    cases = [p for p in expand(plans.load(plan), device) if model in (None, p.case.model)]
    found = [p for p in cases if p.case.label == case]
    if not found:
        raise unknown("case", case, [p.case.label for p in cases])
    if len(found) > 1:
        raise click.UsageError(f"{case!r} is a case of {', '.join(sorted({p.case.model for p in found}))}; name one with --model.")
    images, count = quality_images(found[0])
    click.echo(f"{count} images: {file.write(path, images, count, compressed=compressed)}")


# -- what they share --------------------------------------------------------------------------------------------------
def _view(store_url: str, run_id: int | None) -> ReportView:
    with existing(store_url) as store:
        run = store.run(run_id)
        return _built(run, store.outcomes(run.id))


def _built(run: RunRecord, outcomes: list[Outcome]) -> ReportView:
    """What the page shows, without its pictures."""
    from ..gate import anchors
    from ..report.view import report_view

    reached = anchors.load()
    return report_view.build(run, outcomes, unanchored=lambda case: anchors.unanchored(case.model, case.weights, reached))


def _frame(store_url: str, run_id: int | None, samples: bool) -> pd.DataFrame:
    from ..export import frames

    with existing(store_url) as store:
        return (frames.samples_frame if samples else frames.frame)(store, run_id)


def _compared(run: RunRecord, outcomes: list[Outcome], baseline_path: Path | None, *, needed: bool = False) -> Comparison | None:
    """The comparison with the given baseline, or with the accepted one of this plan and machine class; None where there is none and
    none is needed."""
    from ..gate import baseline_check as gate
    from ..gate import baselines

    path = baseline_path or baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
    if baseline_path is None and not needed and not path.is_file():
        return None
    return gate.compare(baselines.load(path), outcomes, run.environment, plan=run.plan)


def _put(path: str, text: str, *, append: bool = False) -> None:
    """Print a text, or write it to a file and say so."""
    from ..core.errors import Infrastructure

    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(path).open("a" if append else "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy="Name another file.") from error
    click.echo(f"Written: {path}", err=True)
