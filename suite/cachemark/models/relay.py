"""Two next-scale models of one tokenizer: one drafts the first scales, the other makes the rest.

CoDe without training (Chen et al., "Collaborative Decoding Makes Visual Auto-Regressive Modeling Efficient", CVPR 2025, and its code at
bfb204d). What differs from the code: the refiner reads the draft scale by scale instead of in one masked pass, which gives the same logits;
noise belongs to seed and position, so it need not draw the drafted scales again; sampling is the plan's, while the code has a temperature
by scale behind the truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..cache.arena import Memory
from ..cache.layout import Layout
from ..contract.method import Method
from ..core.errors import BadCheckpoint, BadParameter, Unsupported
from ..core.spec import FULL, Sampling
from .scales import ScaleModel


@dataclass
class Draft(Method):
    """The full cache of the first ``count`` scales, after which the generation ends."""

    count: int = 1

    def scales(self, layout: Layout) -> int:
        return self.count


def relayed(refiner: Layout, drafter: Layout, drafted: int, name: str) -> Layout:
    """Return the layout of a generation whose first ``drafted`` scales another model makes.

    Raises BadParameter for another number of scales or other token maps.
    """
    most = len(refiner.scales) - 1
    if drafted not in range(1, most + 1):
        raise BadParameter(f"{name}: {drafted} drafted scales do not leave work to both models.",
                           remedy=f"Draft 1 … {most} of the {most + 1} scales.")
    if drafter.scales != refiner.scales:
        raise BadParameter(f"{name}: the drafter has maps up to {_side(drafter)}, {len(drafter.scales)} of them, the refiner up to "
                           f"{_side(refiner)}, {most + 1}.", remedy="Use two models of the same token maps.")
    plain = replace(drafter.ending(drafted), seeds=(), dtype=torch.float32, device="cpu")  # which are the refiner's
    return replace(refiner, drafter=plain)


def _side(layout: Layout) -> str:
    return "×".join(map(str, layout.scales[-1])) if layout.scales else "none"


class Relay:
    """A drafter and a refiner.

    Labels, seeds and guidance are both models'; maps, not keys, are handed over.
    """

    paradigm = ScaleModel.paradigm

    def __init__(self, name: str, drafter: ScaleModel[Any], refiner: ScaleModel[Any], drafted: int) -> None:
        self.name, self.drafter, self.refiner, self.drafted = name, drafter, refiner, drafted
        first, second = drafter.quantizer, refiner.quantizer
        if first is not second and not _equal(first, second):
            raise BadCheckpoint(f"{name}: the image tokenizers of drafter and refiner differ.", remedy="Use two models of one tokenizer.")
        drafter.share(second)

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Return the layout of a generation: the refiner's, with the drafter's."""
        return relayed(self.refiner.layout(seeds, sampling), self.drafter.layout(seeds, sampling), self.drafted, self.name)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[int, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64; see :meth:`ScaleModel.generate`.

        The keys and values of the draft are freed before the refiner starts. Raises Unsupported for a method other than the full cache.
        """
        if method.name not in ("", FULL):
            raise Unsupported(f"{method.name} does not run on {self.name}, whose two models have caches of their own.",
                              remedy=f"Use {FULL} here, or the method on one of the two models.")
        draft = Draft(self.drafted)
        tokens = sum(self.layout(seeds, sampling).scale_tokens[: self.drafted])

        def drafted(index: int) -> None:
            method.banks = draft.banks  # the keys and values that live while the draft is made
            if mark is not None:
                mark(index)

        def unless_drafted(call: Callable[..., None] | None) -> Callable[..., None] | None:
            return None if call is None else lambda index, *logits: call(index, *logits) if index >= tokens else None

        first = self.drafter.generate(labels, seeds, draft, sampling, memory.turn("drafter"), forced=forced, see=see, mark=drafted)
        method.earlier_bytes = draft.logical_bytes
        del draft.banks, draft.slots
        method.banks = []
        return self.refiner.generate(
            labels, seeds, method, sampling, memory.turn("refiner"), forced=first[:, :tokens] if forced is None else forced,
            see=unless_drafted(see), mark=unless_drafted(mark))


def _equal(first: Any, second: Any) -> bool:
    """Return whether two quantizers have the same maps and tensors."""
    if type(first) is not type(second) or first.scales != second.scales:
        return False
    mine, theirs = (quantizer.state_dict() if isinstance(quantizer, nn.Module) else {} for quantizer in (first, second))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
