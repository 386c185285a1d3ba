"""The report as data: a pure function from a run and its results to frozen dataclasses."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.formatting import duration
from ..core.result import Outcome, Status
from ..core.shipped_plans import run_command
from ..core.spec import OWN, Case
from ..core.units import metric
from ..store.differences import flat
from . import explanations
from .answers import Answer, Recommendation, answer, recommendations
from .baseline_comparison import BaselineComparison, Conclusion, alarms, changes, conclusion
from .case_group import CaseGroup
from .device_limits import Limits, against_limits
from .facts import as_text, conditions, differences, environment_facts, weights_sources
from .image_albums import Albums, Strip, albums, strip
from .method_placings import MethodPlacing, method_placings, plugin_lines
from .missing import Missing, missing
from .papers import PaperTable, papers
from .quality_claims import Claims, criterion, margin_sentence, standing as standing_of
from .report_row import BUSY_MACHINE, process_bias_in_words
from .run_history import HistoryNight, RunHistory, run_history
from .summary_sentences import sentences

if TYPE_CHECKING:  # a page is made without a store
    from ..gate.judgement import RunJudgement
    from ..gate.nights import GateStanding
    from ..store.exchange import Exchange
    from ..store.rows import RunRecord


MOST = 150_000  # raw values in a page; a page with more prints the command for one case's values


@dataclass(frozen=True)
class Note:
    """Remark with its rows and, for a flag, its rule."""

    rows: tuple[str, ...]
    text: str
    rule: str = ""


@dataclass(frozen=True)
class Chapter:
    """Group with everything that the page shows about it.

    ``coverage`` is the confidence of its speedup intervals, 0 to 1; ``not_reproduced`` explains why its values are not comparable with
    published ones; ``margin`` is the test that ``recommendations`` rest on, and ``scope`` describes its score; ``history`` is None for a
    single run; ``placings`` are of all methods;
    ``plugins`` has a name and a line for each plug-in method.
    """

    group: CaseGroup
    heading: str
    conditions: tuple[tuple[str, str], ...]
    sentences: Mapping[str, str]
    notes: tuple[Note, ...]
    albums: Albums
    coverage: float | None
    process_bias: str
    limits: Limits | None
    recommendations: tuple[Recommendation, ...]
    margin: str
    scope: str
    not_reproduced: str
    history: RunHistory | None
    answer: Answer
    strip: Strip | None
    placings: tuple[MethodPlacing, ...]
    plugins: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ReportView:
    """Page as data.

    ``entries`` are the results, each case once, with the process of each in ``trials`` by case key, and all values if ``with_raw``.
    ``sides`` is None unless the run is a comparison, and empty if that did not finish.
    """

    plan: str
    run: str
    when: str
    machine: str
    device: str
    commit: str
    dirty: bool
    state: str
    counts: tuple[tuple[str, int], ...]
    conclusion: Conclusion | None
    chapters: tuple[Chapter, ...]
    changes: tuple[BaselineComparison, ...]
    environment: tuple[tuple[str, str], ...]
    plan_text: str
    commands: tuple[str, ...]
    missing: tuple[Missing, ...]
    entries: tuple[Outcome, ...]
    trials: Mapping[str, str]
    with_raw: bool
    differences: tuple[tuple[str, str, str], ...] | None = None
    papers: tuple[PaperTable, ...] = ()
    alarms: Conclusion | None = None
    sides: tuple[str, ...] | None = None

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes of the scores that recommendations rest on, each once."""
        return tuple(dict.fromkeys(chapter.scope for chapter in self.chapters
                                   if chapter.scope and (chapter.answer.row or chapter.answer.lean)))


def build(
    run: RunRecord, outcomes: Iterable[Outcome], comparison: RunJudgement | None = None, artifact: Callable[[str], bytes] | None = None,
    not_reproduced: Callable[[Case], str] = lambda case: "", *, baseline: Exchange | None = None, nights: Sequence[HistoryNight] = (),
    trials: Mapping[str, str] | None = None, standing: GateStanding | None = None,
) -> ReportView:
    """Return the view of one run.

    ``comparison`` holds the verdicts on the run; ``baseline`` is its other side. ``artifact`` reads a stored file by name (without
    it the page has no images); ``not_reproduced`` returns why a model's values are not comparable with published ones. ``nights`` are the
    runs of this plan, oldest first, this one last; ``trials`` maps case keys to processes.
    """
    results, environment, code = list(outcomes), run.environment, dict(run.code)
    ended, entries = Counter(outcome.status for outcome in results), tuple({outcome.case.key: outcome for outcome in results}.values())
    groups, claims = standing_of(results)
    sides = (comparison.sides if comparison else ()) if run.is_comparison else None
    return ReportView(
        plan=run.plan, run=str(run.id), when=_when(run.started, run.finished),
        machine=f"{environment.machine_class} · {environment.device}", device=environment.device,
        commit=str(code.get("commit") or "unknown"),
        dirty=bool(code.get("dirty")), state=run.state, counts=tuple((str(status), ended[status]) for status in Status if status in ended),
        conclusion=conclusion(comparison, baseline.meta if baseline else None),
        chapters=tuple(_chapter(group, groups, claims, artifact, not_reproduced(group.case), run_history(group, nights), placings)
                       for group, placings in zip(groups, method_placings(groups), strict=True)),
        changes=changes(comparison), environment=environment_facts(environment, code),
        plan_text=json.dumps(run.plan_json, indent=2, ensure_ascii=False), commands=_commands(run, results, comparison),
        missing=tuple(missing(run.id, run.state, groups)), entries=entries, trials=trials or {},
        with_raw=sum(len(values) for outcome in entries for values in outcome.samples.values()) <= MOST,
        differences=differences(baseline.environment, environment) if baseline else None,
        papers=papers(results, environment), alarms=alarms(standing),
        sides=sides,
    )


def _when(started: str, finished: str | None) -> str:
    try:
        start = datetime.fromisoformat(started)
    except ValueError:
        return started
    text = start.strftime("%Y-%m-%d %H:%M") + (f" {start.tzname()}" if start.tzname() else "")
    seconds = duration(started, finished)
    return text if seconds is None else f"{text}, {_length(seconds)}"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _chapter(
    group: CaseGroup, groups: Sequence[CaseGroup], claims: Claims, artifact: Callable[[str], bytes] | None, not_reproduced: str,
    history: RunHistory | None, placings: tuple[MethodPlacing, ...],
) -> Chapter:
    twins = [other for other in groups if other.model == group.model]
    heading = group.model if len(twins) == 1 else f"{group.model}, {_difference(group, twins)}"
    score = criterion(group)
    sure = [row.speedup.confidence for row in group.candidates if row.speedup and row.speedup.stated]
    use, pictures = answer(group, claims), albums(group, artifact)
    evidence = strip(pictures, [row for row in (use.row or use.lean, use.ruined) if row is not None])
    sources = weights_sources(group.rows[0].outcome.facts) if group.rows else ()
    return Chapter(group, heading, (*conditions(group.case), *sources), sentences(group), _notes(group), pictures,
                   min(sure) if sure else None, process_bias_in_words(group.rows[0].outcome) if group.rows else "",
                   against_limits(group.full, group.candidates), recommendations(group, claims),
                   margin_sentence(group, claims), metric(score).scope if score else "",
                   not_reproduced, history, use, evidence, placings, plugin_lines(group, placings))


def _difference(group: CaseGroup, twins: Sequence[CaseGroup]) -> str:
    mine, *other_settings = (dict(flat({k: v for k, v in each.case.to_json().items() if k not in OWN})) for each in (group, *twins))
    fields = [name for name in mine if any(o.get(name) != mine[name] for o in other_settings)]
    settings = ["largest batch" if name.startswith("evaluation max_batch") else
            f"{name.removeprefix('sampling ').replace('_', ' ')} {as_text(mine[name])}" for name in fields]
    return ", ".join(dict.fromkeys(settings)) or group.case.cell


def _notes(group: CaseGroup) -> tuple[Note, ...]:
    noted: dict[str, list[str]] = {}
    load = [row.outcome.facts.other_load or 0.0 for row in group.rows if any(mark.text == BUSY_MACHINE for mark in row.marks)]
    ends = " to ".join(dict.fromkeys(f"{end:.1f}" for end in (min(load), max(load)))) if load else ""
    busy = f"Other processes kept {ends} processors busy while these cases were timed." if len(load) > 1 else ""
    for row in group.rows:
        alike = {mark.reason: busy for mark in row.marks if mark.text == BUSY_MACHINE and busy}  # one note of the whole group
        for text in row.notes:
            noted.setdefault(alike.get(text, text), []).append(row.label)
    rules = {mark.reason: explanations.FLAGS.get(mark.text, "") for row in group.rows for mark in row.marks}
    rules[busy] = explanations.FLAGS[BUSY_MACHINE]
    return tuple(Note(tuple(dict.fromkeys(labels)), text, rules.get(text, "")) for text, labels in noted.items())


def _commands(run: RunRecord, outcomes: Sequence[Outcome], comparison: RunJudgement | None) -> tuple[str, ...]:
    if run.is_comparison:
        return (comparison.command,) if comparison and comparison.command else ()
    plan = str(run.stored_plan.get("file") or run.plan)
    device = outcomes[0].case.device_class if outcomes else ""
    checkout = (f"git checkout {shlex.quote(str(run.code['commit'])[:12])}",) if run.code.get("commit") else ()
    return (*checkout, run_command(plan, device), "cachemark report")
