"""The report as data: run and outcomes in, frozen dataclasses out. Pure; knows neither the store nor HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from ...core.result import Environment, Outcome, Status
from ...core.spec import OWN, Case
from ...core.units import METRICS
from .. import formatting as words
from ..charts.chart import Chart
from ..charts.history import HistoryNight, Trend, history
from ..charts.regimes import Regime, regimes
from . import explanations as why
from .change import Alarms, BaselineComparison, Conclusion, StandingLike, alarms, changes, conclusion
from .device_limits import Limits, against_limits
from .gallery import Album, gallery
from .layer_tables import Layers, layers
from .papers import PaperTable, papers
from .raw_samples import CaseRecord, ledger
from .recommendation import Choice, choices, margin
from .row import FIDELITY, MASKED, OF_INDICES, OF_VECTORS, ON_DEMAND, QUALITY
from .section import Section, sections
from .sentence import Sentence, sentences

_SPEED = ("latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last")
NEAR = 0.1  # share by which two measured rates of one machine may differ and still be called equal
RATES = ("copy", 1e9, "GB/s"), ("matmul", 1e12, "TFLOP/s")
ABBREVIATIONS = {"cpu": "CPU", "cpus": "CPUs", "cuda": "CUDA", "os": "OS", "tf32": "TF32", "gpu": "GPU"}
_BYTES = ("kv_logical", "kv_allocated", "kv_stage", "kv_state", "peak_memory")


class RunLike(Protocol):
    """What the report needs of a run; the store's ``RunRecord`` has it. Times are ISO 8601 texts."""

    @property
    def id(self) -> int: ...
    @property
    def plan(self) -> str: ...
    @property
    def plan_json(self) -> Mapping[str, Any] | str: ...
    @property
    def started(self) -> str: ...
    @property
    def finished(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def code(self) -> Mapping[str, Any]: ...


class BaselineLike(Protocol):
    """What the report needs of a baseline; an exchange file has it. ``meta``: name, saved, reason."""

    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def environment(self) -> Environment: ...


@dataclass(frozen=True)
class LabelledValue:
    """A condition or fact of the environment: its name and its value, as text."""

    name: str
    value: str


@dataclass(frozen=True)
class Note:
    """A remark, the rows it is about, and the rule by which it was made where there is one."""

    rows: tuple[str, ...]
    text: str
    rule: str = ""


@dataclass(frozen=True)
class Missing:
    """Something that has no figure. ``log`` is the whole log of a failed case and ``key`` names it; both are empty elsewhere."""

    what: str
    status: str
    reason: str
    log: str = ""
    key: str = ""


@dataclass(frozen=True)
class Chapter:
    """A section with everything the page says about it. ``coverage`` is the sureness of its speed-up intervals, 0 to 1; ``unanchored`` why
    its figures do not compare with published ones, or empty; ``choices`` which budget to choose, by the rule in ``margin``."""

    section: Section
    heading: str
    conditions: tuple[LabelledValue, ...]
    sentences: tuple[Sentence, ...]
    notes: tuple[Note, ...]
    albums: tuple[Album, ...]
    coverage: float | None
    layers: Layers | None = None
    unanchored: str = ""
    limits: Limits | None = None
    choices: tuple[Choice, ...] = ()
    margin: str = ""
    history: tuple[Chart, ...] = ()


@dataclass(frozen=True)
class DifferenceRow:
    """A fact of the environment that is not what it was for the baseline."""

    name: str
    then: str
    now: str


@dataclass(frozen=True)
class ReportView:
    """The whole page. ``differences`` is None where there is no baseline to differ from."""

    plan: str
    run: str
    when: str
    machine: str
    commit: str
    dirty: bool
    state: str
    counts: tuple[tuple[str, int], ...]
    conclusion: Conclusion | None
    chapters: tuple[Chapter, ...]
    changes: tuple[BaselineComparison, ...]
    environment: tuple[LabelledValue, ...]
    plan_text: str
    commands: tuple[str, ...]
    missing: tuple[Missing, ...]
    entries: tuple[CaseRecord, ...] = ()
    differences: tuple[DifferenceRow, ...] | None = None
    papers: tuple[PaperTable, ...] = ()
    regimes: tuple[Regime, ...] = ()
    alarms: Alarms = field(default_factory=lambda: alarms(None))


def build(
    run: RunLike, outcomes: Iterable[Outcome], comparison: Any = None, artifact: Callable[[str], bytes] | None = None,
    unanchored: Callable[[Case], str] = lambda case: "", *, baseline: BaselineLike | None = None, nights: Sequence[HistoryNight] = (),
    trials: Mapping[str, str] | None = None, standing: StandingLike | None = None, trend: Trend | None = None,
) -> ReportView:
    """The view of one run.

    ``comparison`` has ``rows``, ``exit_code``, ``cases`` and ``summary()`` (a ``regress.gate.Comparison``), ``baseline`` is what it was
    compared with; ``artifact`` gives the bytes of a stored file by its name, and without it no pictures are shown; ``unanchored`` says
    why a model's figures do not compare with published ones, or nothing. ``nights`` are runs of this plan, oldest first and this one last;
    ``trials`` names the process of each case by its key, ``standing`` says how often equal arms raised an alarm, ``trend`` finds
    the changes over the nights.
    """
    held = list(outcomes)
    environment, code = run.environment, dict(run.code)
    parts = sections(held)
    return ReportView(
        plan=run.plan, run=str(run.id), when=_when(run.started, run.finished),
        machine=f"{environment.machine_class} · {environment.device}", commit=str(code.get("commit") or "unknown"),
        dirty=bool(code.get("dirty")), state=run.state, counts=_counts(held),
        conclusion=conclusion(comparison, baseline.meta if baseline else None, run.started),
        chapters=tuple(replace(_chapter(part, parts, artifact), unanchored=unanchored(part.case), choices=choices(part, parts),
                               margin=margin(part), history=history(part, nights, trend, parts)) for part in parts),
        changes=changes(comparison),
        environment=_environment(environment, code), plan_text=_plan_text(run.plan_json), commands=_commands(run.plan, code),
        missing=(*_unfinished(run), *_missing(parts)), entries=ledger(held, str(run.id), trials or {}),
        differences=_differences(baseline.environment, environment) if baseline else None,
        papers=papers(held, environment), regimes=regimes(parts), alarms=alarms(standing),
    )


def _when(started: str, finished: str | None) -> str:
    """Start to the minute and how long it took; texts that are no dates are shown as they are."""
    try:
        start = datetime.fromisoformat(started)
    except ValueError:
        return started
    text = start.strftime("%Y-%m-%d %H:%M") + (f" {start.tzname()}" if start.tzname() else "")
    try:
        length = (datetime.fromisoformat(finished) - start).total_seconds() if finished else None
    except (ValueError, TypeError):
        length = None
    return text if length is None else f"{text}, {_length(length)}"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _counts(outcomes: Sequence[Outcome]) -> tuple[tuple[str, int], ...]:
    """How many outcomes ended how, in the order of :class:`Status`; what did not occur is left out."""
    ended = [outcome.status for outcome in outcomes]
    return tuple((str(status), ended.count(status)) for status in Status if status in ended)


def _chapter(section: Section, parts: Sequence[Section], artifact: Callable[[str], bytes] | None) -> Chapter:
    twins = [other for other in parts if other.model == section.model]
    heading = section.model if len(twins) == 1 else f"{section.model}, {_difference(section, twins)}"
    sure = [row.speed_up.confidence for row in section.arms if row.speed_up]
    return Chapter(section, heading, _conditions(section), sentences(section), _notes(section), gallery(section, artifact),
                   min(sure) if sure else None, layers(section.full), limits=against_limits(section))


def _difference(section: Section, twins: Sequence[Section]) -> str:
    """What tells this cell from the other cells of its model, for a heading."""
    mine = section.case.to_json()
    others = [twin.case.to_json() for twin in twins]
    fields = [k for k in mine if k not in OWN and any(o[k] != mine[k] for o in others)]
    return ", ".join(f"{name.replace('_', ' ')} {_text(mine[name])}" for name in fields) or section.case.cell


def _conditions(section: Section) -> tuple[LabelledValue, ...]:
    """What all rows of a cell share."""
    case = section.case
    held = {
        "Weights": case.weights, "Grid": f"{case.grid[0]} × {case.grid[1]} tokens", "Conditions": case.conditions,
        "Seeds": f"{case.seeds} ({case.samples})", "Batch": case.batch, "Compute dtype": case.dtype, "Engine": case.engine,
        "Device class": case.device_class, "Warm-up, repeats": f"{case.warmup}, {case.repeats}",
    }
    sampling = {name.replace("cfg", "CFG").replace("_", " "): value for name, value in asdict(case.sampling).items()}
    evaluation = dict(_flat("evaluation", case.evaluation))
    return tuple(LabelledValue(_title(name), _text(value)) for name, value in {**held, **sampling, **evaluation}.items())


def _notes(section: Section) -> tuple[Note, ...]:
    """Every remark once, with the rows it holds for, in table order."""
    found: dict[str, list[str]] = {}
    for row in section.rows:
        for text in row.notes:
            found.setdefault(text, []).append(row.case.label)
    rules = {mark.why: why.of_flag(mark.text) for row in section.rows for mark in row.marks}
    return tuple(Note(tuple(dict.fromkeys(labels)), text, rules.get(text, "")) for text, labels in found.items())


def _environment(environment: Environment, code: Mapping[str, Any]) -> tuple[LabelledValue, ...]:
    facts = {**_facts(environment), **dict(_flat("code", code))}
    return tuple(LabelledValue(_title(name), _fact(name, value)) for name, value in facts.items())


def _facts(environment: Environment) -> dict[str, Any]:
    """What is known of a machine, the most important first."""
    first = {"device": environment.device, "machine class": environment.machine_class, "fingerprint": environment.fingerprint}
    return {**first, **dict(_flat("", environment.facts)), **first}


def _differences(then: Environment, now: Environment) -> tuple[DifferenceRow, ...]:
    """What the two do not share, in the order of now. Rates are measured anew in every run: near ones are equal."""
    old, new = _facts(then), _facts(now)
    return tuple(DifferenceRow(_title(name), _fact(name, old.get(name)), _fact(name, new.get(name)))
                 for name in dict.fromkeys((*new, *old)) if not _alike(name, old.get(name), new.get(name)))


def _alike(name: str, one: Any, other: Any) -> bool:
    if name.startswith("rates ") and isinstance(one, float) and isinstance(other, float) and other:
        return abs(one / other - 1) < NEAR
    return _text(one) == _text(other)


def _title(name: str) -> str:
    """A fact's name as a heading: what is an abbreviation stays one."""
    first, _, rest = name.partition(" ")
    return " ".join(filter(None, (ABBREVIATIONS.get(first, first[:1].upper() + first[1:]), rest)))


def _fact(name: str, value: Any) -> str:
    """A rate in its unit, anything else as it is."""
    for ending, scale, unit in RATES:
        if name.startswith("rates ") and name.endswith(ending) and isinstance(value, (int, float)):
            return f"{value / scale:.3g} {unit}"
    return _text(value)


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Nested facts as one level: ``{"gpu": {"clock": 1}}`` gives ``gpu clock``."""
    for name, value in facts.items():
        path = f"{prefix} {name}".strip()
        if isinstance(value, Mapping):
            yield from _flat(path, value)
        else:
            yield path, value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return words.DASH
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)


def _plan_text(plan: Mapping[str, Any] | str) -> str:
    return plan if isinstance(plan, str) else json.dumps(plan, indent=2, ensure_ascii=False)


def _commands(plan: str, code: Mapping[str, Any]) -> tuple[str, ...]:
    """What to type to measure the same again."""
    checkout = (f"git checkout {shlex.quote(str(code['commit']))}",) if code.get("commit") else ()
    return (*checkout, f"cachemark run {shlex.quote(plan)}", "cachemark report")


def _unfinished(run: RunLike) -> Iterable[Missing]:
    if run.state != "finished":
        yield Missing(f"run {run.id}", run.state, "The run did not end by itself: cases of the plan that it did not reach are missing.")


def _missing(parts: Sequence[Section]) -> Iterable[Missing]:
    """Cases without figures, then figures that cases with status ok do not have."""
    rows = [(part, row) for part in parts for row in part.rows]
    for part, row in rows:
        if not row.ok:
            yield Missing(f"{part.model}: {row.case.label}", str(row.outcome.status), row.reason, row.outcome.log,
                          row.case.key)
    for part in parts:
        yield from _gaps(part)


def _wanted(part: Section) -> tuple[str, ...]:
    """Metrics that a section of this paradigm has where nothing is missing."""
    masked = part.paradigm == MASKED
    unasked = (name for name, key in ON_DEMAND.items() if not part.case.measures(key))
    other = (*(OF_INDICES if masked else OF_VECTORS), *unasked)
    judged = () if part.random else tuple(name for name in (*FIDELITY, *QUALITY) if name not in other)
    return (*_SPEED, *(("flops",) if masked else ()), *_BYTES, *judged)


def _no_distribution(part: Section) -> Iterable[Missing]:
    """Why there is no FID, where there is none."""
    what = f"{part.model}: FID, precision and recall"
    stated = part.case.evaluation.get("quality", {})
    if "missing" in stated:
        yield Missing(what, "not measured", str(stated["missing"]))
    elif not stated:
        yield Missing(what, "not measured", "Weights are random: images are noise." if part.random else
                      "The plan compares no images with real ones here; a table [quality] in it does.")
    for key, name in (("lpips", "LPIPS"), ("clip", "CLIP score")):
        if "missing" in (asked := part.case.evaluation.get(key, {})):
            yield Missing(f"{part.model}: {name}", "not measured", str(asked["missing"]))


def _gaps(part: Section) -> Iterable[Missing]:
    """Metrics and reference rows that a section lacks."""
    yield from _no_distribution(part)
    if part.full is None:
        yield Missing(f"{part.model}: full cache", "absent", "No baseline in this run: nothing can be derived against it.")
    for role in ("floor", "numerics"):
        if part.reference(role) is None and not part.random:
            yield Missing(f"{part.model}: {role} row", "absent", "Fidelity is shown without this reference.")
    arms = [row for row in part.rows if row.ok and row.case.role == "arm"]
    for row in arms:
        if row.no_judgement:
            yield Missing(f"{part.model}: {row.case.label}, fidelity and quality", "not judged", row.no_judgement)
    for name in _wanted(part):
        without = [row.case.label for row in arms if not row.outcome.samples.get(name)]
        if without:
            why = "No method has samples." if len(without) == len(arms) else f"No samples for {', '.join(without)}."
            yield Missing(f"{part.model}: {METRICS[name].title}", "not measured", why)
