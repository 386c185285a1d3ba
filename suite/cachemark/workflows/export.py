"""Results and images of a store in other formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.errors import CachemarkError, NothingMeasured, Unsupported
from ..core.files import head_of, output
from ..gate.judgement import RunJudgement
from .check import accepted_path, chosen, judge
from .report import baseline_of
from .results import Run
from .session import DEFAULT_STORE, reading, writing

if TYPE_CHECKING:
    from ..export.asv import Written

Format = Literal["markdown", "latex", "csv", "junit", "figures"]
KINDS = {"markdown": "Markdown table", "latex": "LaTeX table", "csv": "CSV table", "junit": "JUnit file"}  # of :mod:`core.files`


@dataclass(frozen=True)
class Exported:
    """Exported run: its text, or the written files."""

    text: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class StepTexts:
    """Texts for GitHub Actions: step summary, pull-request comment, annotations."""

    summary: str
    comment: str
    annotations: tuple[str, ...]


def export(
    form: Format, path: str | Path | None = None, store: str | Path = DEFAULT_STORE, *, run: int | None = None,
    baseline: str | Path | None = None, samples: bool = False, width: str = "3.25in",
    register: str | Path | None = None, columns: Sequence[str] = (), methods: Sequence[str] = (),
) -> Exported:
    """Export a run (default: the newest) as text, to ``path`` if given.

    Figures need a path and have a ``width``. ``samples`` gives csv a row per raw value; ``junit`` compares with ``baseline`` (default:
    the accepted one) and applies the decisions in ``register``; tables can be restricted to ``columns`` and ``methods``. Raises
    Infrastructure if nothing can be written.
    """
    stored = Run(store, run)
    if form == "figures":
        from ..export import figures

        if path is None:
            raise Unsupported("This format is written to files, and no path was given.", remedy="Name a file or a folder.")
        with writing(path, "Name another folder."):
            return Exported(files=tuple(figures.write(stored.view, Path(path), width)))
    if form == "junit":
        text = _junit(stored, baseline, register)
    elif form == "csv":
        from ..export import frames

        with reading(stored.store) as source:
            text = frames.csv((frames.samples_frame if samples else frames.frame)(source, stored.id))
    else:
        from ..export import documents, tables

        view = stored.view
        columns = tables.headline(view) if not columns and form == "latex" else columns
        chosen_tables = tables.tables(view, () if "all" in columns else columns, methods)
        text = {"markdown": documents.markdown, "latex": documents.latex}[form](chosen_tables)
    return Exported(text, (put(text, path, KINDS[form]),) if path is not None else ())


def step_texts(
    store: str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None, register: str | Path | None = None,
) -> StepTexts:
    """Return texts for GitHub Actions on a run compared with a baseline and in pairs.

    Raises NothingMeasured if the run shares no case with the given ``baseline``.
    """
    from ..export import github

    stored = Run(store, run)
    accepted = baseline_of(stored.record, baseline)
    try:
        compared = _judgement(stored, accepted, register)
    except NothingMeasured:
        if baseline:
            raise
        compared = _judgement(stored, None, register)
    view = stored.view
    return StepTexts(github.summary(view, compared), github.comment(view, compared),
                     tuple(github.workflow_commands(compared)) if compared else ())


def _junit(run: Run, baseline: str | Path | None, register: str | Path | None) -> str:
    from ..export import junit

    if run.record.is_comparison:
        raise Unsupported(f"Run {run.id} is a comparison, which has no JUnit form.",
                          remedy=f"Pass another run with --run, or check it with: cachemark check --run {run.id}")
    judgement = _judgement(run, baseline_of(run.record, baseline) or accepted_path(run.record), register)
    assert judgement is not None, "there is a baseline"
    seconds = {outcome.case.key: outcome.seconds for outcome in run.outcomes}
    return junit.junit(judgement, run.record.plan, run.record.started, run.record.finished, seconds)


def _judgement(run: Run, path: Path | None, register: str | Path | None) -> RunJudgement | None:
    if run.record.is_comparison and path is None:
        return None
    with reading(run.store) as source:
        judgement = judge(source, run.record, path, expired=True, register=None if register is None else Path(register))
    return judgement if judgement.by_judge else None


def asv_results(folder: Path = Path(".asv/results"), store: str | Path = DEFAULT_STORE, *, repository: Path = Path(".")) -> Written:
    """Write all runs of a store as asv results. Raises NothingMeasured if the store has no run of a plan."""
    from ..export import asv

    with reading(store) as source, writing(folder, "Name another folder."):
        chosen(source, None)
        return asv.write(source, folder, repository)


def image_grid(
    path: str | Path, cases: Sequence[str] = (), store: str | Path = DEFAULT_STORE, *, run: int | None = None, model: str | None = None,
) -> Path:
    """Write the images of a run (default: the newest) at the fixed seeds as one PNG."""
    from ..export.figures import grid

    stored = Run(store, run)
    with reading(stored.store) as source:
        png = grid(stored.outcomes, source.artifacts.read, cases, model)
    with writing(path), output(path, "PNG image") as part:
        part.write_bytes(png)
    return Path(path)


def put(text: str, path: str | Path, kind: str) -> Path:
    """Write a text to a new file or over an older output of this ``kind``.

    Raises CachemarkError for another file, and Infrastructure."""
    with writing(path), output(path, kind) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def append(text: str, path: str | Path) -> Path:
    """Append to a file of text. Raises CachemarkError for any other file, and Infrastructure."""
    path = Path(path)
    with writing(path):
        other = path.suffix.lower() not in ("", ".md", ".txt")  # GitHub's own file has no suffix
        if path.exists() and (other or not path.is_file() or b"\0" in head_of(path)):
            raise CachemarkError(f"{path} is not a file of text.", remedy="Name a Markdown file.")
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return path
