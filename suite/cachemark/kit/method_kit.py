"""The kit: every check of a method's paradigm on small models, and for what is wrong the smallest of them that shows it; every check of a
model on itself, and of a metric on a few images."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..contract.heads import HeadGroups
from ..contract.method import Method
from ..core.errors import BadBudget, BadKnob, CachemarkError, Unsupported
from ..models.protocol import ModelEntry, Request
from . import batches, checks, ragged
from .capture import as_written
from .findings import Checked, Flaw, KitProof
from .masked import masked_cells
from .metric_checks import METRIC, MetricExample
from .model_checks import MODEL, ModelExample
from .next_scale import ScaleCell
from .next_token import Cell, NoBudget
from .work_checks import work_is_declared

Check = Callable[[Any], Iterator[Flaw]]
STORED: tuple[Check, ...] = (  # of methods that store what later passes read
    checks.neutral_is_full, checks.tight_is_not_neutral, checks.evicting_is_masking, checks.prefix_is_sound, checks.bytes_are_declared,
    checks.declared_is_used, checks.live_bytes_are_counted, checks.memory_is_the_arenas, checks.dead_is_never_read,
    checks.second_generation_repeats, checks.nothing_is_read_on_the_host, checks.settings_are_left_alone, work_is_declared,
)
GROUPS: tuple[Check, ...] = (
    *STORED, checks.heads_are_served_once, checks.timed_is_shown, checks.graph_is_eager, batches.samples_are_the_same_in_any_batch,
    ragged.rows_are_as_alone, checks.other_numbers_run, checks.knobs_are_refused,
)
TOKEN: tuple[Check, ...] = (
    *(check for check in GROUPS if check is not checks.heads_are_served_once), checks.neutral_is_no_short_cut, checks.budget_is_kept,
    checks.budget_is_used, ragged.rows_keep_the_budget,
)
SCALE: tuple[Check, ...] = (*STORED, checks.samples_are_the_same_in_another_order)
MASKED: tuple[Check, ...] = (
    checks.neutral_is_full, checks.second_generation_repeats, checks.samples_are_the_same_in_another_order, checks.memory_is_the_arenas,
    checks.nothing_is_read_on_the_host, checks.timed_is_shown, checks.settings_are_left_alone, work_is_declared,
)
TOKEN_SIZES = ((1, 1, 4), (1, 2, 4), (2, 2, 5))  # layers, heads and lines, the smallest first
SCALE_SIZES = ((1, 1, (1, 2, 3, 4)), (1, 2, (1, 2, 3, 4, 5)), (2, 2, (1, 2, 3, 4, 5, 6)))
SAID = 400  # letters of an error
REFUSALS = (BadBudget, BadKnob, Unsupported, NoBudget)  # a method's own words for that it does not run on such a model
NO_WEIGHTS = Request()
Mode = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class CheckFamily:
    """The checks of a paradigm, the cells that each is made on, and the smaller ones of a cell, the smallest first."""

    checks: Sequence[Check]
    cells: Callable[[type[Method], Mode], Sequence[Any]]
    smaller: Callable[[Any], Sequence[Any]]


def _token_cells(cls: type[Method], mode: Mode) -> list[Cell]:
    return [Cell(cls, mode, "native", "mha"), Cell(cls, mode, "int8", "gqa")]


def _scale_cells(cls: type[Method], mode: Mode) -> list[ScaleCell]:
    return [ScaleCell(cls, mode, "native", "mha"), ScaleCell(cls, mode, "int8", "gqa")]


def _smaller_scales(cell: ScaleCell) -> list[ScaleCell]:
    return [replace(cell, layers=layers, heads=heads, sides=sides) for layers, heads, sides in SCALE_SIZES]


FAMILIES = {
    "next-token": CheckFamily(TOKEN, _token_cells, lambda cell: [
        replace(cell, layers=layers, heads=heads, grid=grid) for layers, heads, grid in TOKEN_SIZES]),
    "next-scale": CheckFamily(SCALE, _scale_cells, _smaller_scales),
    "masked": CheckFamily(MASKED, masked_cells, lambda cell: []),
}
HEAD_GROUPS = replace(FAMILIES["next-token"], checks=GROUPS)


def family_of(cls: type[Method], paradigm: str) -> CheckFamily | None:
    """The checks of a method on models of a paradigm."""
    if issubclass(cls, HeadGroups) and paradigm == "next-token":
        return HEAD_GROUPS
    return FAMILIES.get(paradigm)


def check_method(
    cls: type[Method], knobs: Mapping[str, Any] | None = None, on_check: Callable[[Checked], None] = lambda checked: None,
) -> KitProof:
    """Every check of each paradigm that a method runs on, with these ``knobs`` beside those of its budgets. ``on_check`` is called after
    each. An error of the method's own code is a finding; where it refuses a model or its knobs, the check is left out."""
    made, mode = list[Checked](), tuple((knobs or {}).items())
    for paradigm in cls.paradigms:
        family = family_of(cls, paradigm)
        for check in family.checks if family else ():
            made.append(made_of(check, cls, paradigm, mode))
            on_check(made[-1])
    return KitProof("method", cls.name, tuple(made))


def made_of(check: Check, cls: type[Method], paradigm: str, mode: Mode = ()) -> Checked:
    """One check of a method, on all cells of a paradigm until one shows something."""
    family, name = family_of(cls, paradigm), f"{paradigm}: {check.__name__.replace('_', ' ')}"
    assert family is not None, paradigm
    asks, left_out, examples = " ".join((inspect.getdoc(check) or "").split()), "", 0
    try:
        cells = family.cells(cls, mode)
    except REFUSALS as error:
        return Checked(name, asks, left_out=getattr(error, "message", str(error)))
    for cell in cells:
        try:
            found = _found(check, cell)
        except REFUSALS as error:
            left_out = getattr(error, "message", str(error))
            continue
        examples += 1
        if found:
            return Checked(name, asks, tuple(_smallest(check, family.smaller(cell)) or found), examples=examples)
    return Checked(name, asks, left_out="" if examples else left_out or "no model of the kit suits it", examples=examples)


def check_model(
    entry: ModelEntry, on_check: Callable[[Checked], None] = lambda checked: None, request: Request = NO_WEIGHTS,
) -> KitProof:
    """Every check of a model, loaded with the weights that a request names, else with those that it has without any."""
    return _proof("model", entry.name, MODEL, ModelExample(entry, request), on_check)


def check_metric(example: MetricExample, on_check: Callable[[Checked], None] = lambda checked: None) -> KitProof:
    """Every check of a metric."""
    return _proof("metric", example.cls.name, METRIC, example, on_check)


def _proof(kind: str, name: str, checks: Sequence[Check], example: Any, on_check: Callable[[Checked], None]) -> KitProof:
    made = list[Checked]()
    for check in checks:
        made.append(made_of_one(check, example))
        on_check(made[-1])
    return KitProof(kind, name, tuple(made))


def made_of_one(check: Check, example: ModelExample | MetricExample) -> Checked:
    """One check of a model or a metric."""
    name, asks = check.__name__.replace("_", " "), " ".join((inspect.getdoc(check) or "").split())
    try:
        return Checked(name, asks, tuple(_found(check, example)), examples=1)
    except REFUSALS as error:
        return Checked(name, asks, left_out=getattr(error, "message", str(error)))


def _smallest(check: Check, smaller: Sequence[Any]) -> list[Flaw]:
    """The findings on the smallest model that shows any; none where only the usual one does."""
    for cell in smaller:
        try:
            if found := _found(check, cell):
                return found
        except REFUSALS:
            continue
    return []


def _found(check: Check, cell: Any) -> list[Flaw]:
    """The findings of a check; an error of the method's own code is one."""
    try:
        with as_written():
            return list(check(cell))
    except REFUSALS:
        raise
    except CachemarkError as error:
        return [Flaw(_owed(cell), error.message[:SAID], _size(cell))]
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return [Flaw(_owed(cell), f"{type(error).__name__}: {str(error)[:SAID]} ({last.filename}:{last.lineno})", _size(cell))]


def _owed(cell: Any) -> str:
    return "figures" if isinstance(cell, MetricExample) else "a generation"


def _size(cell: Any) -> str:
    """The model of an example in words; nothing where it cannot even be loaded."""
    try:
        return str(cell.size)
    except Exception:
        return ""
