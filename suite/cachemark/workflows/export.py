"""Results and images of a store in other formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..core.errors import CachemarkError, NothingMeasured, UnknownName, Unsupported, unknown
from ..core.files import head_of, output, writing
from ..gate.judgement import RunJudgement
from .check import accepted_path, chosen, judge
from .report import baseline_of
from .results import Run
from .session import DEFAULT_STORE, reading

if TYPE_CHECKING:
    from ..export.asv import Written

TOKENS, STREAMED = "tokens.safetensors", 64  # the stored tokens of a case, and images that are decoded at a time
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
    baseline: str | Path | None = None, samples: bool = False, width: str = "3.25in", kind: str = "svg",
    register: str | Path | None = None, columns: Sequence[str] = (), methods: Sequence[str] = (), plain: bool = False,
) -> Exported:
    """Export a run (default: the newest) as text, to ``path`` if given.

    Figures need a path, and have a ``width`` and a ``kind``: svg, pdf or png. ``samples`` gives csv a row per raw value;
    ``junit`` compares with ``baseline`` (default:
    the accepted one) and applies the decisions in ``register``; tables can be restricted to ``columns`` and ``methods``, and
    ``plain`` ones are for a paper. Raises
    Infrastructure if nothing can be written.
    """
    if form == "csv":
        with reading(store) as source:
            chosen(source, run)
        lines = csv_lines(store, run=run, samples=samples)
        return Exported("".join(lines)) if path is None else Exported(files=(put(lines, path, KINDS[form]),))
    stored = Run(store, run)
    if form == "figures":
        from ..export import figures

        if path is None:
            raise Unsupported("This format is written to files, and no path was given.", remedy="Name a file or a folder.")
        with writing(path, "Name another folder."):
            return Exported(files=tuple(figures.write(stored.view, Path(path), width, kind)))
    if form == "junit":
        text = _junit(stored, baseline, register)
    else:
        from ..export import documents, tables

        view = stored.view
        columns = tables.headline(view) if not columns and form == "latex" else columns
        chosen_tables = tables.tables(view, () if "all" in columns else columns, methods, plain)
        text = {"markdown": documents.markdown, "latex": documents.latex}[form](chosen_tables)
    return Exported(text, (put(text, path, KINDS[form]),) if path is not None else ())


def csv_lines(store: str | Path = DEFAULT_STORE, *, run: int | None = None, samples: bool = False) -> Iterator[str]:
    """Yield the CSV of a run (default: the newest) in parts, with ``samples`` a row per raw value."""
    from ..export import records

    with reading(store) as source:
        yield from records.csv_lines(source, run, samples=samples)


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
    scale: int = 1,
) -> Path:
    """Write the images of a run (default: the newest) as one PNG, each pixel ``scale`` wide."""
    from ..export.figures import grid

    stored = Run(store, run)
    with reading(stored.store) as source:
        png = grid(stored.outcomes, source.artifacts.read, cases, model, scale)
    with writing(path), output(path, "PNG image") as part:
        part.write_bytes(png)
    return Path(path)


def image_batch(
    path: str | Path, case: str, store: str | Path = DEFAULT_STORE, *, run: int | None = None, model: str = "", device: str = "cpu",
    plugins: Sequence[str | Path] = (),
) -> Path:
    """Write the images that a run (default: the newest) compared of one case as a sample batch, decoded from its stored tokens.

    ``case``: its label, such as ``linear 1/4``. Raises UnknownName for another case, and NothingMeasured without stored tokens."""
    import torch
    from safetensors.torch import load as tensors

    from ..core import seeds
    from ..metrics.compute.sample_batches import SampleWriter
    from ..plans.expand import expand
    from ..plans.manifest import manifest
    from ..plugins import loading
    from ..trial.child.bench import Bench

    for file in plugins:
        loading.load(file)
    stored = Run(store, run)
    with_tokens = [o for o in stored.outcomes if o.ok and o.case.role in ("baseline", "candidate") and TOKENS in o.artifacts]
    matching = [o for o in with_tokens if o.case.label == case and model in ("", o.case.model)]
    if not matching:
        raise unknown("case", case, {o.case.label for o in with_tokens}) if with_tokens else NothingMeasured(
            f"Run {stored.id} has no stored tokens.", remedy="Images of random weights are not kept; name another run.")
    if len({o.case.model for o in matching}) > 1:
        raise UnknownName(f"Several models have a case {case}.", remedy="Name one with --model.")
    outcome = matching[0]
    planned = next((p for p in expand(stored.plan, device) if p.case.key == outcome.case.key), None)
    if planned is None:
        raise Unsupported(f"This version expands the plan of run {stored.id} to other cases than {outcome.case.title}.",
                          remedy="Use the version that measured it.")
    with reading(stored.store) as source:
        tokens = tensors(source.artifacts.read(outcome.artifacts[TOKENS]))["tokens"]
    bench = Bench.load(planned)
    subset = seeds.subset(outcome.case.seeds, bench.entry.classes).first(len(tokens))
    about = manifest(outcome.case, subset.labels, subset.seeds, bench.entry.prompts, stored.record.plan) | {
        "commit": stored.record.code.get("commit", ""), "code": dict(stored.record.code)}
    with writing(path), output(path, "sample batch") as part, SampleWriter(part, len(tokens), subset.labels, about) as writer:
        for rows in tokens.split(STREAMED):
            with torch.inference_mode():
                writer.add(bench.loaded.decode((rows if rows.is_floating_point() else rows.long()).to(device)).float())
    return Path(path)


def put(text: str | Iterator[str], path: str | Path, kind: str) -> Path:
    """Write a text, or its parts, to a new file or over an older output of this ``kind``.

    Raises CachemarkError for another file, and Infrastructure."""
    with writing(path), output(path, kind) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines([text] if isinstance(text, str) else text)
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
