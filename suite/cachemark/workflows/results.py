"""A run in a store as an object: its cases, its table, its report, and its leaderboard in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.report_row import display_label, names_of
from ..analysis.report_view import ReportView, build
from ..core.calls import TERMS, Hinted, listed, strict
from ..core.errors import BadPlan, BadPlugin, NothingMeasured, UnknownName, Unsupported, unknown
from ..core.result import Outcome
from ..core.spec import Case, shown_label
from ..gate import anchors
from .check import chosen
from .report import Report, report
from .session import DEFAULT_STORE, reading

if TYPE_CHECKING:
    import pandas as pd

    from ..analysis.answers import Answer
    from ..plans.schema import Plan
    from .compare import PairedComparison, Terms
    from .session import Machine


@dataclass
class Measured:
    """A run that was just measured: number, plan, plug-in files, machine, and the new outcomes (``ran``).

    ``reused``: number of outcomes reused from earlier runs.
    """

    run_id: int
    plan: Plan
    plugins: tuple[str, ...]
    machine: Machine
    ran: list[Outcome] = field(default_factory=list)
    reused: int = 0


class Run(Hinted):
    """A stored run, whose outcomes are read once and whose images are read when they are requested.

    ``measured``: how it was just measured, None for a run that was opened; ``notes``: lines to print.
    """

    _instead = {
        **dict.fromkeys(("figures", "chart", "charts", "plots"), 'run.plot("tradeoff"), "speed", "memory" or "quality"'),
        **dict.fromkeys(("latex", "to_latex"), "cachemark export latex"), "csv": "run.frame().to_csv(FILE)",
        **dict.fromkeys(("markdown", "to_markdown"), "cachemark export markdown"), "to_csv": "run.frame().to_csv(FILE)",
        **dict.fromkeys(("to_pandas", "df", "dataframe", "table"), "run.frame()"), "results": "run.frame(), or run.outcomes",
        "best": "run.answers", "leaderboard": "run in a notebook, or run.report(FILE)", "images": "run[CASE].images()",
        "show": "run in a notebook, or run.report(FILE)",
    }

    def __init__(self, store: str | Path, number: int | None = None, measured: Measured | None = None, notes: tuple[str, ...] = ()) -> None:
        self.store, self.measured, self.notes = store, measured, notes
        with reading(store) as source:
            self.record = chosen(source, number)
            self.outcomes = tuple(source.outcomes(self.record.id))

    @property
    def id(self) -> int:
        """Its number in the store."""
        return self.record.id

    @property
    def plan(self) -> Plan:
        """The plan as it was run; for a comparison, the plan whose cases it compares.

        Of an opened run, paths of plug-ins are relative to the working directory. Raises BadPlan if this version cannot read it.
        """
        from pydantic import ValidationError

        from ..plans.schema import Plan

        if self.measured:
            return self.measured.plan
        try:
            return Plan.of_stored(self.record.stored_plan)
        except ValidationError:
            raise BadPlan(f"Run {self.id} ({self.record.plan}) is stored without a plan that this version reads.",
                          remedy="Load the plan's file: cachemark.plan(PATH).") from None

    @property
    def cases(self) -> tuple[RunCase, ...]:
        """Every case with its outcome, in the order of measurement."""
        return tuple(RunCase(self.store, outcome) for outcome in self.outcomes)

    def __iter__(self) -> Iterator[RunCase]:
        return iter(self.cases)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, case: str | int) -> RunCase:
        """Return a case by its label (``linear 1/4``), its key, the beginning of its key, or its position.

        Of a comparison, the first side of its first pair. Raises UnknownName for no such case, or several.
        """
        return self.cases[case] if isinstance(case, int) else RunCase(self.store, outcomes_of(case, self.outcomes)[0])

    def __repr__(self) -> str:
        done = sum(outcome.ok for outcome in self.outcomes)
        return f"<Run {self.id} of plan {self.record.plan}: {done} of {len(self.outcomes)} cases ok, {self.record.state}>"

    def _repr_html_(self) -> str:
        """The leaderboard, for a notebook."""
        from ..export.documents import html
        from ..export.tables import tables

        return html(tables(self.view))

    @property
    def view(self) -> ReportView:
        """The report as data, without images, baseline and history."""
        with reading(self.store) as source:
            reached = anchors.reached(source)
        return build(self.record, self.outcomes, not_reproduced=lambda case: anchors.not_reproduced(case.model, case.weights, reached))

    @property
    def answers(self) -> dict[str, Answer]:
        """The recommended cache of each model: a ``text``, and its ``row``, None for the full cache."""
        return {chapter.heading: chapter.answer for chapter in self.view.chapters}

    def frame(self) -> pd.DataFrame:
        """One row per case: see :func:`cachemark.export.frames.case_frame`."""
        from ..export.frames import case_frame

        with reading(self.store) as source:
            return case_frame(source, self.id)

    def samples_frame(self) -> pd.DataFrame:
        """One row per raw value: see :func:`cachemark.export.frames.samples_frame`."""
        from ..export.frames import samples_frame

        with reading(self.store) as source:
            return samples_frame(source, self.id)

    def plot(self, kind: str = "tradeoff") -> Any:
        """Return charts of the report as an Altair chart: ``tradeoff``, ``speed``, ``memory`` or ``quality``.

        Needs the extra ``plots``. Raises Unsupported without it, and the errors of :func:`cachemark.export.altair_charts.plot`.
        """
        try:
            from ..export.altair_charts import plot
        except ImportError:
            raise Unsupported("Charts as objects need Altair.", remedy="Install it: pip install 'cachemark[plots]'.") from None
        return plot(self.view, kind)

    @strict("compare", TERMS)
    def compare(self, first: str, second: str, *, machine: Machine | str | None = None, terms: Terms | None = None,
                plugins: Sequence[str | Path] = (), progress: bool = True) -> PairedComparison:
        """Measure two cases of this run again, by label, in pairs of fresh processes, and test them.

        ``machine``: by default the machine of this run, or its device if the run was opened. ``plugins``: by default those of this run. A
        run that was opened imports no file that a store names until you pass ``plugins=run.plugins``: then it is code that you chose to
        run.
        Raises BadPlugin without it, and the errors of :func:`cachemark.workflows.compare`.
        """
        from . import compare as comparing

        if machine is None and self.measured is None and not self.outcomes:
            raise NothingMeasured(f"Run {self.id} has no outcome, so its device is not known.", remedy="Name one, such as machine=\"cpu\".")
        machine = machine or (self.measured.machine if self.measured else self.outcomes[0].case.device_class)
        plan, files = self.plan, listed(plugins) or (self.measured.plugins if self.measured else ())
        if not files and self.measured is None and (named := self.plugins or plan.plugins):
            raise BadPlugin(f"Run {self.id} was measured with {', '.join(named)}, which a store alone does not import.",
                            remedy="If you trust the code, add plugins=run.plugins.")
        own = {str(file.resolve()) for file in plan.files()}  # they load with the plan, and their methods join nothing
        terms = terms or comparing.Terms()
        return comparing.compare(plan, self.store, cases=(first, second), machine=machine, terms=terms, progress=progress,
                                 plugins=[file for file in files if file not in own])

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plug-in files that the run was measured with.

        Raises BadPlugin if one is missing or its code is another.
        """
        from ..plans.schema import PLUGIN_FILES
        from ..plugins import loading

        files: dict[str, str] = self.record.stored_plan.get(PLUGIN_FILES, {})
        for file, digest in files.items():
            if not Path(file).is_file() or loading.read(file).digest != digest:
                raise BadPlugin(f"Run {self.id} was measured with the plug-in {file!r}, which is missing or has changed.",
                                remedy=f"Name the file to use: plugins=[{Path(file).name!r}].")
        return tuple(files)

    def report(self, path: str | Path = "report.html", *, baseline: str | Path | None = None, public: bool = False) -> Report:
        """Write the HTML report of this run."""
        return report(self.store, path, run=self.id, baseline=baseline, public=public)


class Png(bytes):
    """The bytes of a PNG file, which a console describes and a notebook shows."""

    def __repr__(self) -> str:
        width, height = (int.from_bytes(self[at : at + 4]) for at in (16, 20))  # of its first chunk
        return f"<PNG of {width} × {height} pixels, {len(self):,} bytes>"

    def _repr_png_(self) -> bytes:
        return bytes(self)


class RunCase:
    """A case of a run: its identity (``case``), its ``outcome``, and its images."""

    def __init__(self, store: str | Path, outcome: Outcome) -> None:
        self._store, self.outcome = store, outcome

    @property
    def case(self) -> Case:
        """The identity of the case."""
        return self.outcome.case

    def __repr__(self) -> str:
        return f"<{self.case.full_title}: {self.outcome.status}>"

    def images(self) -> Png | None:
        """Return a PNG with the full cache's images above the case's images, or None if none are stored."""
        file = next((file for name, file in self.outcome.artifacts.items() if name.partition(".")[0] == "grid"), None)
        if file is None:
            return None
        with reading(self._store) as source:
            return Png(source.artifacts.read(file))

    def _repr_html_(self) -> str:
        """Return the images for a notebook, or the status and log."""
        from ..export.documents import case_html

        return case_html(self.outcome, self.images())


@strict("open")
def open_run(store: str | Path = DEFAULT_STORE, run: int | None = None) -> Run:
    """Open a stored run, by default the newest. Raises BadStore, and NothingMeasured for an empty store."""
    return Run(store, run)


def outcomes_of(case: str, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of the case with this label, title (also as reports print it) or key (four digits suffice).

    A comparison has one for each side of each pair. Raises UnknownName for no such case, or several, listing what distinguishes them.
    """
    among, named = list(outcomes), shown_label(case)
    matches = [o for o in among if named in (o.case.label, o.case.title, o.case.full_title, display_label(o))
               or (len(case) >= 4 and o.case.key.startswith(case))]
    if not matches:
        raise unknown("case", case, {o.case.label for o in among})
    if len(cases := list({o.case.key: o.case for o in matches}.values())) > 1:
        models = [each.model for each in cases]
        names = models if len(set(models)) == len(cases) else names_of(cases)
        choices = ", ".join(f"{match.key} ({name})" for match, name in zip(cases, names, strict=True))
        raise UnknownName(f"{case!r} names {len(cases)} cases of this run.", remedy=f"Use a key: {choices}.")
    return matches
