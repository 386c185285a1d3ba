"""Checks of how a next-token method behaves towards those around it: the settings of torch, other numbers, wrong knobs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import CachemarkError, Unsupported
from .common import Found, finding
from .next_token import SAMPLING, SEEDS, Cell, generate, recorded
from .settings import settings_restored


def settings_are_left_alone(cell: Cell) -> Found:
    """A generation changes no setting of torch, such as TF32 or the number of threads: the full cache beside it would run under it too."""
    with settings_restored() as changes:
        generate(cell, cell.tight())
    if changes:
        yield finding(cell, "the settings of torch as they were", "; ".join(changes))


def other_numbers_run(cell: Cell) -> Found:
    """In bf16 the method runs, its logits are numbers, and its slots take half the bytes."""
    if cell.codec != "native":
        raise Unsupported("The bytes of a codec do not follow those of numbers.")
    held = recorded(cell).memory.nbytes("slots")
    logits: list[Tensor] = []
    memory = cell.memory()
    cell.in_bf16.generate(torch.tensor(SEEDS), list(SEEDS), cell.tight(), SAMPLING, memory, see=lambda _, seen: logits.append(seen.clone()))
    if not all(bool(seen.isfinite().all()) for seen in logits):
        yield finding(cell, "finite logits in bf16", "NaN or infinity")
    if 2 * memory.nbytes("slots") != held:
        yield finding(cell, f"{held // 2} B in slots in bf16, half of those in fp32", f"{memory.nbytes('slots')} B")


def knobs_are_refused(cell: Cell) -> Found:
    """A knob that there is not, or of another type, is an error of ours that says so, and so is one without room for anything."""
    wrong: dict[str, Any] = {"no_such_knob": 1}
    wrong |= {knob: {} for knob, value in cell.tight().knobs().items() if type(value) in (int, str)}
    for knob, value in wrong.items():
        try:
            cell.cls.build({knob: value})
        except CachemarkError:
            continue
        except Exception as error:
            yield finding(cell, f"BadKnob for {knob} = {value!r}", f"{type(error).__name__}: {error}")
        else:
            yield finding(cell, f"BadKnob for {knob} = {value!r}", "it is taken")
    if "B" in cell.tight().knobs():
        try:
            cell.cls.build({"B": -1}).resolve(cell.layout)
        except CachemarkError:
            return
        yield finding(cell, "BadKnob for B = -1", "it is taken")

