"""The paragraph of a paper that says how a run was measured, with everything that somebody else needs to measure it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..core.differences import flat
from ..core.spec import FULL, Case, canonical
from ..core.wording import on_one_line
from ..report import formatting as fmt
from ..report.view.case_group import CaseGroup
from ..report.view.report_row import ReportRow
from ..report.view.report_view import Chapter, ReportView
from ..stats.intervals import LEVEL, LUCK

NAME = 160  # characters of a name that are shown; two hashes are 129
_MEANS = {  # settings of the sampling whose value is a sign for something else
    ("cfg_interval", -1): "every position is guided", ("top_k", 0): "off", ("top_p", 1.0): "off",
    ("steps", 0): "the model's own number", ("diffusion_steps", 0): "the model's own number",
}  # fmt: skip
NOTE = 1000  # of a sentence
_SOFTWARE = ("python", "torch", "cuda", "driver", "threads", "fingerprint")


def methods_text(view: ReportView) -> str:
    """A paragraph for each group of a report, plain text. Every field of the cases is in it: what all share is said once, the
    knobs of each method beside its name."""
    return "\n\n".join(_paragraph(view, chapter) for chapter in view.chapters) + "\n"


def _paragraph(view: ReportView, chapter: Chapter) -> str:
    group = chapter.group
    parts = (_sampled(group.case), _timed(group.case, chapter.coverage), *_evaluation(group), _methods(group), *_failed(group),
             _machine(view), on_one_line(chapter.unanchored, NOTE))
    return " ".join(filter(None, parts))


def _sampled(case: Case) -> str:
    drawn = _listed({name: _meaning(name, value) for name, value in asdict(case.sampling).items()})
    return (f"{_name(case.model)} (grid {case.grid[0]} × {case.grid[1]}, weights {_name(case.weights)}) generated images for the "
            f"conditions {_name(case.conditions)} at {case.samples} seeds of the subset {_name(case.seeds)}, in batches of "
            f"{case.batch}, computed in {_name(case.dtype)} by the engine {_name(case.engine)} on {_name(case.device_class)}. Tokens were "
            f"drawn with {drawn}.")


def _meaning(name: str, value: Any) -> str:
    means = _MEANS.get((name, value))
    return f"{_name(value)} ({means})" if means else _name(value)


def _timed(case: Case, coverage: float | None) -> str:
    covers = "" if coverage is None else (f", wider by what two processes of {fmt.percent(LUCK)} luck differ by, that covers at least "
                                          f"{fmt.percent(coverage)} where that holds")
    return (f"Each case was timed in {case.repeats} generations of a batch after {case.warmup} warm-up generations; latency is the median "
            "wall time of a batch, image decoding included, and a speed-up is the median of the full cache over that of the method, with "
            f"an interval from order statistics{covers}.")


def _evaluation(group: CaseGroup) -> Iterable[str]:
    """The way in which images were compared and evaluated."""
    if group.random:
        yield "Weights are random, so images are noise and neither fidelity nor quality is given."
        return
    if group.searched:
        yield "The largest batch that fits was searched for; neither fidelity nor quality was measured there."
        return
    yield ("Fidelity compares each image with that of the full cache at the same seed; means over seeds have "
           f"{100 * LEVEL:g} % intervals (bounded figures by Gaffke's bounds, others by the hull of a lognormal and a bootstrap-t "
           "interval or by Student's).")
    if group.case.evaluation:
        yield f"Quality was evaluated with {_listed(dict(flat(group.case.evaluation)))}."
    if group.references:
        yield f"The references are {'; '.join(map(_reference, group.references))}."


def _reference(row: ReportRow) -> str:
    floor = row.case.role == "floor"
    what = "the full cache with the same labels at other seeds" if floor else "the full cache at the same seeds and half the batch"
    return f"{what} ({row.case.role}: {row.case.samples} images, {_name(row.case.dtype)})"


def _methods(group: CaseGroup) -> str:
    """Every case of the group with its own settings."""
    rows = [row for row in group.rows if row.case.role in ("arm", "baseline")]
    return f"The cases compared were {'; '.join(map(_method, rows))}."


def _method(row: ReportRow) -> str:
    case = row.case
    own = {"budget": case.budget, "storage codec": case.codec, **dict(flat(case.knobs))}
    own |= dict(flat({"decoder" if knob == "name" else knob: value for knob, value in case.decoder.items()}))
    true = row.fact("true_ratio")
    if true and case.role == "arm":
        own["true share kept"] = true
    name = f"the full cache, {FULL}" if case.role == "baseline" else case.named
    return f"{_name(name)} ({_listed(own)})"


def _failed(group: CaseGroup) -> Iterable[str]:
    failed = [f"{_name(row.case.label)} ({row.outcome.status})" for row in group.rows if not row.ok]
    if failed:
        yield f"There are no results of {', '.join(failed)}."


def _machine(view: ReportView) -> str:
    facts = {name.lower(): value for name, value in view.environment}
    known = {name: facts[name] for name in _SOFTWARE if facts.get(name, fmt.DASH) != fmt.DASH}
    software = f", {_listed(known)}" if known else ""
    changed = " with uncommitted changes" if view.dirty else ""
    version = facts.get("code version", "")
    return (f"Everything was measured by plan {_name(view.plan)} on {_name(view.machine)}{software}, with cachemark "
            f"{f'{_name(version)}, ' if version else ''}commit {_name(view.commit)}{changed}.")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{_name(str(name).replace('cfg', 'CFG').replace('_', ' '))} {_name(value)}" for name, value in values.items())


def _name(value: object) -> str:
    if isinstance(value, list | tuple):
        value = canonical(value)
    return fmt.DASH if value in (None, "") else on_one_line(value, NAME)
