"""Knowledge of a model in a store: its newest measurements, those of one device apart, judged together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..analysis.case_group import CaseGroup
from ..analysis.quality_claims import MARGINS, Claims, Margins, QualityClaim, standing
from ..analysis.report_row import ReportRow
from ..contract.method import Method
from ..core import limits, seeds
from ..core.errors import BadCalibration, BadParameter, CachemarkError, Unsupported
from ..core.limits import Rates
from ..core.result import Outcome
from ..core.spec import FULL, Case
from ..methods.base import calibrations
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from ..plans.expand import Planned, expand
from ..plans.price import without_missing
from ..plans.schema import FILE, Plan
from ..store.db import Store
from .forecasts import identity
from .roofline_times import device_rates
from .stand_ins import stand_in, with_stand_ins

CPU = "cpu"
RECENT = 100  # runs that are looked at: older ones are of older code
USUAL = {"next-token": (["linear"], ["1/4", "1/8"]), "next-scale": (["ams_kv"], ["0.8", "0.51"]),
         "masked": (["lazymar", "marche"], ["0.8", "0.6"])}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """Outcomes of a model by cell, each cell from the newest run that has its full cache. ``here``: the cells that were measured on the
    device that is asked about, newest first; ``plan``: the newest plan that measured the model;
    ``sequential``: one of the runs that are held added seeds until its methods were decided."""

    outcomes: tuple[Outcome, ...] = ()
    here: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    sequential: bool = False

    @classmethod
    def of(cls, store: Store | None, model: str, gpu: str) -> Held:
        """Everything that a store holds; nothing where there is none."""
        cells: dict[str, tuple[bool, list[Outcome]]] = {}
        references: dict[str, Outcome] = {}
        plan: Mapping[str, Any] = {}
        sequential = False
        for record in [] if store is None else [run for run in store.runs() if not run.is_comparison][:RECENT]:
            assert store is not None
            mine = [outcome for outcome in store.outcomes(record.id) if outcome.case.model == model]
            plan = plan or (record.plan_json if mine else {})
            sequential = sequential or (bool(mine) and record.sequential)
            for cell, outcomes in _cells(mine).items():
                on = _is_on(gpu, record.environment.device, outcomes[0].case.device_class)
                if cell not in cells or (on and not cells[cell][0]):
                    cells[cell] = on, outcomes
            for outcome in mine:
                if outcome.case.role in ("other_seeds", "other_batch"):
                    references.setdefault(outcome.case.key, outcome)
        held = tuple(outcome for _, outcomes in cells.values() for outcome in outcomes)
        return cls((*held, *references.values()) if held else (), tuple(cell for cell, (on, _) in cells.items() if on), plan, sequential)


def _cells(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Candidates and their full cache by cell, where that has values."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.role in ("candidate", "baseline"):
            found.setdefault(outcome.case.cell, []).append(outcome)
    return {cell: held for cell, held in found.items() if any(o.ok and o.case.role == "baseline" for o in held)}


def _is_on(gpu: str, device: str, device_class: str) -> bool:
    """Return whether a device, by the name that its driver gives it, is the GPU called so: ``h100`` is an ``NVIDIA H100 80GB HBM3``."""
    if gpu == CPU or device_class == CPU:
        return gpu == device_class
    return gpu in device.lower().replace("-", " ").split()


@dataclass(frozen=True)
class Claimed:
    """The claim of a method with its sizes, with the row and the group that it is about."""

    claim: QualityClaim
    row: ReportRow
    group: CaseGroup

    @property
    def qualified(self) -> bool:
        """True where its images are shown to be not worse, and nothing else speaks against it."""
        return self.claim.non_inferior and not self.row.unranked


@dataclass(frozen=True)
class Known:
    """Everything that advice stands on. ``groups`` are all that the store holds of the model, ``here`` those of the device that are alike
    but for the batch; ``cases`` the methods with their sizes, each once, by :func:`.forecasts.identity`; ``full`` the full cache; ``notes``
    say what is left out, or stands in for what nobody has measured."""

    full: Case
    groups: tuple[CaseGroup, ...]
    here: tuple[CaseGroup, ...]
    claims: Claims
    cases: Mapping[str, Case]
    plan: Plan
    notes: tuple[str, ...] = ()

    @property
    def claimed(self) -> dict[str, Claimed]:
        """The claim of each method that rests on most seeds, where there are several: all of them are one family."""
        claims: dict[str, Claimed] = {}
        for group in self.groups:
            for row in group.candidates:
                claim, name = self.claims.get(row.case.key), identity(row.case)
                if claim is not None and (name not in claims or claim.n > claims[name].claim.n):
                    claims[name] = Claimed(claim, row, group)
        return claims

    @property
    def unjudged(self) -> dict[str, str]:
        """The reason why nothing is claimed of the images of a method that was measured."""
        return {identity(row.case): row.unranked for group in reversed(self.groups) for row in group.candidates if row.ok and row.unranked}

    @property
    def savings(self) -> dict[str, float]:
        """The share that each method saves, wherever it was measured: bytes do not depend on the device."""
        return {identity(row.case): row.saving for group in self.groups for row in group.candidates if row.ok and row.saving is not None}

    def rates(self, gpu: str) -> Rates:
        """Of the device: as measured beside its outcomes, else as its data sheet says, of a CPU as measured here."""
        for group in self.here:
            if (limit := group.full.limit if group.full else None) is not None:
                return Rates(limit.bandwidth, limit.peak_flops)
        return device_rates(None, self.full.dtype) if gpu == CPU else limits.gpu(gpu, self.full.dtype)


def known_of(store: Store | None, model: str, paradigm: str, gpu: str, batch: int, max_loss: float | None) -> Known:
    """Everything that a store says of a model, or where it says nothing the usual methods of its family."""
    held = Held.of(store, model, gpu)
    groups, claims = standing(held.outcomes, MARGINS if max_loss is None else Margins(max_loss, max_loss),
                              sequential=held.sequential)
    groups = tuple(group for group in groups if group.full is not None and not group.searched)
    plan = _stored_plan(held.plan, model, batch)
    if not groups:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = _unmeasured(plan, model, paradigm, batch, gpu, claims)
        return replace(found, notes=tuple(dict.fromkeys((*found.notes, *(str(warning.message) for warning in told)))))
    notes: tuple[str, ...] = ()
    if plan is None:
        plan, notes = _usual(MODELS.get(model), paradigm, batch, gpu)
    here = _alike([group for cell in held.here for group in groups if group.case.cell == cell], batch)
    full = (here or groups)[0].case
    if not here and gpu != CPU:
        full = replace(full, dtype="bfloat16")
    candidates = {identity(row.case): row.case for group in groups for row in group.candidates if row.ok
                  and row.case.sampling == full.sampling}
    return Known(full, groups, here, claims, candidates, plan, notes)


def _alike(groups: Sequence[CaseGroup], batch: int) -> tuple[CaseGroup, ...]:
    """Groups of one data type, engine and sampling, the weights being whose they may: those among which the batch is, else the newest."""
    first = next((group for group in groups if group.case.batch == batch), groups[0] if groups else None)
    if first is None:
        return ()
    return tuple(group for group in groups if _terms(group.case) == _terms(first.case))


def _terms(case: Case) -> tuple[object, ...]:
    return case.dtype, case.engine, case.sampling


def at_batches(plan: Plan, batches: Sequence[int]) -> Plan:
    """The plan with every block at these batches, and with as many samples as the largest of them takes."""
    cells = {cell.model_dump_json(): cell for own in plan.cells for batch in batches
             if (cell := own.model_copy(update={"batch": batch, "samples": own.samples and max(own.samples, batch)}))}
    most, fidelity = max(batches), plan.fidelity
    fewest = max(seeds.SIZES[fidelity.seeds], max(cell.samples for cell in cells.values()), most)
    series = next((name for name, size in seeds.SIZES.items() if size >= fewest), fidelity.seeds)
    more = {"samples": max(fidelity.samples, most), **({"seeds": series} if seeds.SIZES[fidelity.seeds] < fewest else {})}
    return plan.model_copy(update={"cells": list(cells.values()), "fidelity": fidelity.model_copy(update=more)})


def _stored_plan(stored: Mapping[str, Any], model: str, batch: int) -> Plan | None:
    """A plan that measures at this batch what the newest one measured of the model, wherever it is written; None where there is none, or
    one of another version."""
    from pydantic import ValidationError

    try:
        found = Plan.of_stored(stored).only(models=[model])
    except ValidationError:
        return None
    beside = Path(str(stored.get(FILE, ""))).parent  # of its file, to which the paths of its plug-ins are relative
    return at_batches(found.model_copy(update={"plugins": [str((beside / name).resolve()) for name in found.plugins]}), [batch])


def _unmeasured(plan: Plan | None, model: str, paradigm: str, batch: int, gpu: str, claims: Claims) -> Known:
    """Knowledge on paper alone: of what a plan would measure that has measured nothing, or of the usual methods."""
    entry: ModelEntry = MODELS.get(model)
    notes: tuple[str, ...] = ()
    if plan is not None:
        bare = without_missing(plan)[0]
        try:
            return _on_paper(expand(with_stand_ins(plan, bare), _device(gpu)), claims, plan)
        except CachemarkError as error:
            notes = (f"The newest plan that the store has of {model} cannot be priced: {error}",)
    plan, more = _usual(entry, paradigm, batch, gpu)
    return _on_paper(expand(plan, _device(gpu)), claims, plan, (*notes, *more))


def _on_paper(expanded: Sequence[Planned], claims: Claims, plan: Plan, notes: tuple[str, ...] = ()) -> Known:
    planned = [p.case for p in expanded if not p.unsupported_reason]
    full = next((case for case in planned if case.role == "baseline"), None)
    if full is None:
        raise Unsupported(next((p.unsupported_reason for p in expanded if p.case.role == "baseline"), "") or "It has no full cache.")
    return Known(full, (), (), claims, {identity(case): case for case in planned if case.role == "candidate"}, plan, notes)


def _usual(entry: ModelEntry, paradigm: str, batch: int, gpu: str) -> tuple[Plan, tuple[str, ...]]:
    """The usual methods of a family at the usual budgets, and a sentence about each that is left out or has a stand-in."""
    names, budgets = USUAL[paradigm]
    tables: list[dict[str, Any]] = []
    notes: list[str] = []
    for name in names:
        table = {"name": name, **_stand_in(METHODS.get(name), entry, notes)}
        try:
            planned = expand(_plan_of(entry.name, [table], budgets, batch, gpu), _device(gpu))
        except (BadParameter, BadCalibration, Unsupported) as error:
            notes.append(f"Left out: {error}")
            continue
        tables.append(table)
        notes += [f"Left out at {p.case.budget}: {p.unsupported_reason}" for p in planned if p.case.role == "candidate"
                  and p.unsupported_reason]
    return _plan_of(entry.name, tables or [{"name": FULL}], budgets, batch, gpu), tuple(notes)


def _stand_in(cls: type[Method], entry: ModelEntry, notes: list[str]) -> dict[str, Any]:
    """Parameters in the place of what nobody has measured of the weights that come with the package, with a sentence that says so."""
    parameters = stand_in(cls, entry)
    if not parameters or calibrations.measured(cls.name, entry.identity(Request())):
        return {}
    notes.append(f"Nobody has measured for {cls.name} how alike the scales of these weights are, so a sixth of the layers, "
                 f"{len(parameters['demanding'])}, are taken to be demanding, as in its paper.")
    return parameters


def _plan_of(model: str, methods: list[dict[str, Any]], budgets: list[str], batch: int, gpu: str) -> Plan:
    width = "float32" if gpu == CPU else "bfloat16"
    cell = {"model": model, "methods": methods, "budgets": budgets, "dtype": width, "engine": "auto"}
    plan = Plan.model_validate({"name": "advised", "on_unsupported": "unsupported", "cells": [cell],
                                 "fidelity": {"seeds": "s256", "samples": 256}})
    return at_batches(plan, [batch])


def _device(gpu: str) -> str:
    return CPU if gpu == CPU else "cuda"
