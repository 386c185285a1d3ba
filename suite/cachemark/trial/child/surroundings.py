"""Changes of what all cases of a process share, and what they mean for the outcome of the case that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...core.result import CHANGED, FLAGGED, Outcome, Status
from ...machine.shared_state import Change, Impact, SharedState

PICKED = 8  # numbers of each tensor by which changed weights are told; more would read a large model once per case
IMPORTED, RAN = "Changed by its import", "Changed while it ran"


class Surroundings:
    """The state that the cases of this process share, and the weights of their model, as they must be before each case."""

    def __init__(self) -> None:
        self._state = SharedState()
        self._weights: tuple[object, ...] = ()

    def reset(self, parameters: Sequence[Tensor] = ()) -> None:
        """Take everything as it is now: nothing has run but our own code, or that which loads the model and is the same for all."""
        self._state, self._weights = SharedState(), _picked(parameters)

    def imported(self) -> list[Change]:
        """Changes by the import of a plug-in, put back. What cannot be put back is found again by :meth:`changed`."""
        found = self._state.changes()
        if found:
            self._state.restore()
        self._state.extend()
        return found

    def changed(self, parameters: Sequence[Tensor]) -> list[Change]:
        """Everything that is no longer as it was."""
        found = self._state.changes()
        if self._weights and _picked(parameters) != self._weights:
            found.append(Change("weights of the model", Impact.FIGURES))
        return found


def flagged(outcome: Outcome, imported: Sequence[Change], ran: Sequence[Change]) -> Outcome:
    """The outcome with what its method has changed: a fact and a footnote. Where its own times were made under the change they are not
    compared; where its figures were computed with it, there are none."""
    if not imported and not ran:
        return outcome
    impact = max((change.impact for change in ran), default=Impact.NONE)
    sentence = " ".join(f"{when}: {', '.join(map(str, changes))}." for when, changes in ((IMPORTED, imported), (RAN, ran)) if changes)
    ended = " The process was ended after it, so that no other case is touched." if ran else " That was put back before any case."
    facts: dict[str, Any] = {**outcome.facts, CHANGED: [str(change) for change in (*imported, *ran)]}
    facts["footnotes"] = [*facts.get("footnotes", ()), f"{sentence}{ended}"]
    if impact > Impact.NONE:
        found = ", ".join(str(change) for change in ran if change.impact > Impact.NONE)
        facts[FLAGGED] = [{"expected": "the process as it was", "found": found}]
    if outcome.ok and impact is Impact.FIGURES:
        log = f"{sentence} Figures that were made with that are not its own, and are not kept.{ended}"
        return Outcome(outcome.case, Status.ERROR, log=log, facts=facts)
    if outcome.ok and impact is Impact.TIMES:
        facts.setdefault("quality_only", f"{sentence} A speed-up would measure that.")
    return replace(outcome, facts=facts)


def _picked(parameters: Sequence[Tensor]) -> tuple[object, ...]:
    """A few numbers of each tensor and what torch counts of its changes."""
    if not parameters:
        return ()
    with torch.inference_mode():
        few = [_few(tensor.detach()).to(torch.float64) for tensor in parameters]
        numbers = torch.cat(few).cpu().numpy().tobytes()
    return numbers, tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in parameters)


def _few(tensor: Tensor) -> Tensor:
    """Some numbers from all over a tensor, of one that does not lie in one piece from its first row."""
    row = tensor.view(-1) if tensor.is_contiguous() else tensor[(0,) * (tensor.dim() - 1)]
    return (torch.view_as_real(row).flatten() if row.is_complex() else row)[:: max(1, row.numel() // PICKED)]
