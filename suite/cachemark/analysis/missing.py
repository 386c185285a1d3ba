"""Values that a run lacks, with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.result import JUDGING
from ..core.units import FID, JOULES, METRICS, SEEN, in_order, least_images, metric, quality_name
from .case_group import CaseGroup
from .report_row import FIDELITY
from .summary_sentences import NO_BASELINE

TOO_FEW = "Too few images for a FID: at least {least} are needed."


@dataclass(frozen=True)
class Missing:
    """A case or metric without values; ``log`` and ``key`` are set for failed cases."""

    what: str
    status: str
    reason: str
    log: str = ""
    key: str = ""


def missing(run_id: object, state: str, groups: Sequence[CaseGroup]) -> Iterable[Missing]:
    """Yield the missing results of a run: unreached and failed cases, then values that other rows have."""
    if state != "finished":
        yield Missing(f"run {run_id}", state, "The run was cut short.")
    for group in groups:
        for row in group.rows:
            if not row.ok:
                yield Missing(f"{group.model}: {row.label}", str(row.outcome.status), row.outcome.reason, row.outcome.log, row.case.key)
    for group in groups:
        yield from _gaps(group)


def _no_distribution(group: CaseGroup) -> Iterable[Missing]:
    what = f"{group.model}: FID, precision and recall"
    quality_pass = group.case.evaluation.get("quality", {})
    if "missing" in quality_pass:
        yield Missing(what, "not measured", str(quality_pass["missing"]))
    elif few := _too_few(quality_pass):
        yield Missing(f"{group.model}: {few}", "too few images", TOO_FEW.format(least=least_images(few)))
    elif not quality_pass and not group.searched:
        yield Missing(what, "not measured", "Weights are random: images are noise." if group.random else
                      "Add a [quality] table to the plan.")
    measured = {name for row in group.rows for name in row.quality}
    for about in METRICS.values():
        absent = [METRICS[part].title for part in about.mean_of if part not in measured]
        if absent and measured.intersection(about.mean_of):
            yield Missing(f"{group.model}: {about.title}", "not measured",
                          f"No prompts for: {'; '.join(absent)}.")
    for name, identity in group.case.metrics.items():
        if "missing" in identity:
            yield Missing(f"{group.model}: {metric(name).title}", "not measured", str(identity["missing"]))


def _too_few(quality_pass: Mapping[str, Any]) -> str:
    count, preset = quality_pass.get("samples"), quality_pass.get("preset")
    if not isinstance(count, int) or count < 1 or preset not in SEEN:
        return ""
    name = quality_name(FID, preset, count)
    return name if count < least_images(name) else ""


def _gaps(group: CaseGroup) -> Iterable[Missing]:
    yield from _no_distribution(group)
    if group.full is None:
        yield Missing(f"{group.model}: full cache", "absent", NO_BASELINE)
    for role, name in (("other_seeds", "different-seed"), ("other_batch", "batch-size")):
        if not (group.random or group.searched or any(row.ok and row.case.role == role for row in group.references)):
            yield Missing(f"{group.model}: {name} reference", "absent", "Not in this run.")
    candidates = [row for row in group.rows if row.ok and row.case.role == "candidate"]
    for row in candidates:
        if row.unjudged and not group.searched:
            yield Missing(f"{group.model}: {row.label}, fidelity and quality", "not evaluated", row.unjudged)
    timed = [row for row in group.rows if row.ok and row.timed]
    if not any(JOULES in row.outcome.samples for row in timed) and (reason := next((row.no_energy for row in timed if row.no_energy), "")):
        yield Missing(f"{group.model}: {METRICS[JOULES].title}", "not measured", reason)
    names = {name for row in candidates for name in (*row.fidelity, *row.quality)} | set(group.full.outcome.samples if group.full else ())
    for name in in_order(names):
        without = [row.label for row in candidates if not row.outcome.samples.get(name) and name not in row.quality
                   and not (row.same_distribution and name in FIDELITY) and not (group.random and metric(name).kind in JUDGING)]
        if without:
            yield Missing(f"{group.model}: {metric(name).title}", "not measured", f"No samples for {', '.join(without)}.")
