"""Every method passes every check of the kit: method and mode × codec × kind of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cachemark.core.errors import Unsupported
from cachemark.kit import batches, checks
from cachemark.kit.runner import MASKED, SCALE, TOKEN, Check

from . import masked, scales
from .cells import cells, crossed, sampled
from .per_head import PER_VECTOR, Scored, Staggered

# test_batch.py and test_graph.py run more samples; parameters, bf16 and settings do not depend on codec and attention (tests/kit)
ELSEWHERE = {batches.samples_are_the_same_in_any_batch, checks.graph_is_eager, checks.wrong_parameters_are_refused, checks.bf16_runs,
             checks.settings_are_unchanged}
SCALES = [*scales.cells(), *(scales.ScaleCell(cls, (), codec, attention) for cls in (Staggered, Scored) for codec in PER_VECTOR
                             for attention in scales.KV_HEADS)]
FAMILIES: tuple[tuple[Sequence[Any], Sequence[Any], Sequence[Check]], ...] = (  # cells, those of every run, checks
    (cells(), crossed(cells()), TOKEN), (SCALES, SCALES, SCALE), (masked.cells(masked.MODES), masked.cells(masked.MODES), MASKED),
)  # fmt: skip


def params() -> Iterator[Any]:
    for kind, (chosen, always, made) in zip(("next-token", "next-scale", "masked"), FAMILIES, strict=True):
        for param in sampled(chosen, always):
            for check in made:
                narrow = check is checks.neutral_is_full and "c_min" in dict(param.values[0].mode)  # type: ignore[union-attr, call-overload]
                if check not in ELSEWHERE and not narrow:  # parameters of a budget that no other budget replaces; see test_scales.py
                    yield pytest.param(*param.values, check, id=f"{kind}-{param.id}-{check.__name__}", marks=param.marks)


@pytest.mark.parametrize(("cell", "check"), list(params()))
def test_a_method_passes(cell: Any, check: Check) -> None:
    try:
        assert not list(check(cell))
    except Unsupported as reason:
        pytest.skip(reason.message)
