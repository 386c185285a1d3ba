"""The paragraph of a paper that says how a run was measured, with everything that somebody else needs to measure it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..analysis import formatting as fmt
from ..analysis.case_group import CaseGroup
from ..analysis.report_row import MASKED, ReportRow
from ..analysis.report_view import Chapter, ReportView
from ..core.differences import flat
from ..core.result import FULL_BESIDE
from ..core.spec import FULL, QUALITY_PASS, Case, canonical
from ..core.wording import on_one_line
from ..stats.intervals import LEVEL, LUCK

NAME = 160  # characters of a name that are shown; two hashes are 129
_MEANS = {  # settings of the sampling whose value is a sign for something else
    ("cfg_interval", -1): "every position is guided", ("top_k", 0): "off", ("top_p", 1.0): "off",
    ("steps", 0): "the model's own number", ("diffusion_steps", 0): "the model's own number",
}  # fmt: skip
NOTE = 1000  # of a sentence
_OF_MASKED = ("steps", "diffusion_steps")  # settings that other families do not have
_SOFTWARE = ("python", "torch", "cuda", "driver", "threads", "fingerprint")


def methods_text(view: ReportView) -> str:
    """A paragraph for each group of a report, plain text. Every field of the cases is in it: what all share is said once, the
    knobs of each method beside its name."""
    return "\n\n".join(_paragraph(view, chapter) for chapter in view.chapters) + "\n"


def _paragraph(view: ReportView, chapter: Chapter) -> str:
    group = chapter.group
    parts = (_sampled(group), _timed(group, chapter.coverage), *_evaluation(group), _methods(group), *_failed(group),
             _machine(view), on_one_line(chapter.unanchored, NOTE))
    return " ".join(filter(None, parts))


def _sampled(group: CaseGroup) -> str:
    case = group.case
    drawn = _listed({name: _meaning(name, value) for name, value in asdict(case.sampling).items()
                     if value or group.paradigm == MASKED or name not in _OF_MASKED})
    return (f"{_name(case.model)} (grid {case.grid[0]} × {case.grid[1]}, weights {_name(case.weights)}) generated images for the "
            f"conditions {_name(case.conditions)} at {case.samples} seeds of the subset {_name(case.seeds)}, in batches {_batches(group)}, "
            f"computed in {_name(case.dtype)} by the engine {_name(case.engine)} on {_name(case.device_class)}. Tokens were drawn with "
            f"{drawn}.")


def _meaning(name: str, value: Any) -> str:
    means = _MEANS.get((name, value))
    return f"{_name(value)} ({means})" if means else _name(value)


def _batches(group: CaseGroup) -> str:
    """The sizes of all batches of a group: what is timed, what is compared and what is evaluated may each have another."""
    case = group.case
    if group.searched:
        return f"as large as fit, searched from {case.batch}"
    if group.random:
        return f"of {case.batch}"
    sizes = {"timed": case.batch, "compared with the full cache's": _compared(case)}
    if case.measures(QUALITY_PASS):
        sizes["evaluated"] = case.evaluation[QUALITY_PASS].get("batch", case.batch)
    if len(set(sizes.values())) == 1:
        return f"of {case.batch}"
    *before, last = (f"of {_name(size)} where they were {what}" for what, size in sizes.items())
    return f"{', '.join(before)} and {last}"


def _compared(case: Case) -> int:
    """The batch of the images that are compared: the plan's own, else the timed one; of the numerics row half of it, or 2 of 1."""
    batch = min(int(case.evaluation.get("batch", case.batch)), case.samples)
    return batch // 2 or 2 if case.role == "numerics" else batch


def _timed(group: CaseGroup, coverage: float | None) -> str:
    case, timed = group.case, [row for row in group.arms if row.ok]
    covers = "" if coverage is None else (f", wider by what two processes of {fmt.percent(LUCK)} luck differ by, that covers at least "
                                          f"{fmt.percent(coverage)} where that holds")
    most = max((len(row.outcome.samples.get("latency", ())) for row in timed if row.case.decoder), default=0)
    more = f", under a decoder in up to {most}, each of another batch as far as there are," if most > case.repeats else ""
    turns = ", timed in turns with the method," if any(row.outcome.facts.get(FULL_BESIDE) for row in timed) else ""
    return (f"Each case was timed in {case.repeats} generations of a batch{more} after {case.warmup} warm-up generations; latency is the "
            f"median wall time of a batch, image decoding included, and a speed-up is the median of the full cache{turns} over that of the "
            f"method, with an interval from order statistics{covers}.")


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
    evaluation = {name: value for name, value in group.case.evaluation.items() if name != "batch"}  # that of what is compared
    if evaluation:
        yield f"Quality was evaluated with {_listed(dict(flat(evaluation)))}."
    if group.references:
        yield f"The references are {'; '.join(map(_reference, group.references))}."


def _reference(row: ReportRow) -> str:
    floor = row.case.role == "floor"
    what = "with the same labels at other seeds" if floor else f"at the same seeds in batches of {_compared(row.case)}"
    return f"the full cache {what} ({row.case.role}: {row.case.compared} images, {_name(row.case.dtype)})"


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
