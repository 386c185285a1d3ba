"""The checks of a method, a model or a metric, and how one of them runs."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..contract.heads import HeadGroups
from ..contract.method import Method
from ..core.errors import BadBudget, BadParameter, CachemarkError, Unsupported, text_of
from ..core.plugin_modules import place_of
from ..core.spec import FLOPS
from ..models.protocol import ModelEntry, Request
from . import batches, budgets, checks, ragged
from .capture import uncompiled
from .findings import Example, KitFinding, KitResult
from .masked import masked_cells
from .metric_checks import METRIC, MetricExample
from .model_checks import MODEL, ModelExample
from .next_scale import WIDE, ScaleCell
from .next_token import Cell
from .positions import evicted_positions_are_distinct, merged_entries_are_evicted
from .saving import flops_are_the_declared_ones, saving_cells, scales_that_are_not_generated_are_absent
from .work import work_is_declared

Check = Callable[[Any], Iterator[KitFinding]]
STORED: tuple[Check, ...] = (  # of methods with a KV cache
    checks.neutral_is_full, checks.tight_is_not_neutral, checks.evicting_is_masking, checks.prefix_is_sound, checks.bytes_are_declared,
    checks.declared_is_used, checks.live_bytes_are_counted, checks.all_memory_is_counted, checks.dead_is_never_read,
    checks.second_generation_repeats, checks.nothing_is_read_on_the_host, checks.settings_are_unchanged, work_is_declared,
    evicted_positions_are_distinct, merged_entries_are_evicted, budgets.budgets_are_the_requested_ones,
)
GROUPS: tuple[Check, ...] = (
    *STORED, checks.every_head_has_one_slot, checks.timed_equals_fidelity, checks.graph_is_eager, batches.samples_are_the_same_in_any_batch,
    batches.equal_tokens_tie, ragged.long_conditions_are_causal, ragged.rows_equal_single_rows, ragged.padding_is_never_read,
    checks.bf16_runs, checks.wrong_parameters_are_refused,
)
TOKEN: tuple[Check, ...] = (
    *(check for check in GROUPS if check is not checks.every_head_has_one_slot), checks.neutral_is_no_special_case, budgets.budget_is_kept,
    budgets.budget_is_used, ragged.rows_keep_the_budget,
)
SCALE: tuple[Check, ...] = (*STORED, checks.samples_are_the_same_in_another_order)
MASKED: tuple[Check, ...] = (
    checks.neutral_is_full, checks.second_generation_repeats, checks.samples_are_the_same_in_another_order, checks.slots_are_live,
    checks.all_memory_is_counted, checks.nothing_is_read_on_the_host, checks.timed_equals_fidelity, checks.settings_are_unchanged,
    work_is_declared, budgets.budgets_are_the_requested_ones,
)
SAVING: tuple[Check, ...] = (
    checks.neutral_is_full, checks.second_generation_repeats, checks.samples_are_the_same_in_another_order, checks.all_memory_is_counted,
    checks.nothing_is_read_on_the_host, checks.graph_is_eager, checks.timed_equals_fidelity, checks.settings_are_unchanged,
    checks.wrong_parameters_are_refused, flops_are_the_declared_ones, scales_that_are_not_generated_are_absent,
    budgets.budgets_are_the_requested_ones,
)
LONGEST_ERROR = 400  # characters
REFUSALS = (BadBudget, BadParameter, Unsupported)  # the method does not support this example
Mode = tuple[tuple[str, Any], ...]


def _both_codecs(cls: type[Method], mode: Mode) -> list[Cell]:
    return [Cell(cls, mode, "native", "mha"), Cell(cls, mode, "int8", "gqa")]


def _square_and_wide(cls: type[Method], mode: Mode) -> list[ScaleCell]:
    return [ScaleCell(cls, mode, "native", "mha"), ScaleCell(cls, mode, "int8", "gqa", WIDE)]


FAMILIES: dict[str, tuple[Sequence[Check], Callable[[type[Method], Mode], Sequence[Any]]]] = {  # by paradigm: checks, and what they run
    "next-token": (TOKEN, _both_codecs), "next-scale": (SCALE, _square_and_wide),
    "masked": (MASKED, masked_cells),
}


@dataclass(frozen=True)
class PlannedCheck:
    """A check and the examples it runs on."""

    check: Check
    examples: Callable[[], Sequence[Example]]
    prefix: str = ""

    @property
    def name(self) -> str:
        """The paradigm and the words of the check's name."""
        return self.prefix + self.check.__name__.replace("_", " ")

    def run(self) -> KitResult:
        """Run the check on each example until it finds something, then on smaller examples.

        An error raised by the code under test is a finding. If it refuses every example, the check is skipped.
        """
        requirement = " ".join((inspect.getdoc(self.check) or "").split("\n\n")[0].split())
        skipped, count = "no model of the kit suits it", 0
        try:
            for example in self.examples():
                try:
                    findings = findings_of(self.check, example)
                except REFUSALS as error:
                    skipped = error.message
                    continue
                count += 1
                if findings:
                    return KitResult(self.name, requirement, tuple(self._on_a_smaller_one(example) or findings), examples=count)
        except REFUSALS as error:
            skipped = error.message
        return KitResult(self.name, requirement, skipped="" if count else skipped, examples=count)

    def _on_a_smaller_one(self, example: Example) -> list[KitFinding]:
        for smaller in example.smaller:
            try:
                if findings := findings_of(self.check, smaller):
                    return findings
            except REFUSALS:
                continue
        return []


def method_checks(cls: type[Method], parameters: Mapping[str, Any] | None = None) -> Iterator[PlannedCheck]:
    """Yield every check of each paradigm of a method, with these ``parameters`` at every budget."""
    mode = tuple((parameters or {}).items())
    for paradigm in cls.paradigms:
        if paradigm in FAMILIES:
            saves = paradigm == "next-scale" and cls.budget_kind == FLOPS
            family_checks, cells = (SAVING, saving_cells) if saves else FAMILIES[paradigm]
            for check in GROUPS if issubclass(cls, HeadGroups) and paradigm == "next-token" else family_checks:
                yield PlannedCheck(check, partial(cells, cls, mode), f"{paradigm}: ")


def model_checks(entry: ModelEntry, request: Request | None = None) -> Iterator[PlannedCheck]:
    """Yield every check of a model, loaded with the weights of ``request`` or without any."""
    example = ModelExample(entry, request or Request())
    yield from (PlannedCheck(check, lambda: [example]) for check in MODEL)


def metric_checks(example: MetricExample) -> Iterator[PlannedCheck]:
    """Yield every check of a metric."""
    yield from (PlannedCheck(check, lambda: [example]) for check in METRIC)


def findings_of(check: Check, example: Example) -> list[KitFinding]:
    """Return the findings of a check, including an error of the code under test. Raises REFUSALS."""
    expected = "values" if isinstance(example, MetricExample) else "a generation"
    try:
        with uncompiled():
            return list(check(example))
    except REFUSALS:
        raise
    except CachemarkError as error:
        place = place_of(error)
        actual = f"{error.message} {error.remedy}"[:LONGEST_ERROR].rstrip() + (f" ({place[0]}:{place[1]})" if place else "")
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = place_of(error) or (frame.filename, frame.lineno)
        actual = f"{type(error).__name__}: {text_of(error)[:LONGEST_ERROR]} ({file}:{line})"
    try:
        return [KitFinding(expected, actual, example.size)]
    except Exception:  # a model that cannot be loaded has no size
        return [KitFinding(expected, actual)]
