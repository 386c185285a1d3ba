"""Every method passes every check of the kit: method and mode × codec × kind of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cachemark.core.errors import Unsupported
from cachemark.kit import batches, checks
from cachemark.kit.runner import MASKED, SCALE, TOKEN, Check
from cachemark.kit.work import work_is_declared

from . import masked, scales
from .cells import WHOLE, cells, crossed, sampled
from .per_head import PER_VECTOR, Scored, Staggered

# test_batch.py and test_graph.py run more samples; parameters, bf16 and settings do not depend on codec and attention (tests/kit)
ELSEWHERE = {batches.samples_are_the_same_in_any_batch, checks.graph_is_eager, checks.wrong_parameters_are_refused, checks.bf16_runs,
             checks.settings_are_unchanged}
SCALES = [*scales.cells(), *(scales.ScaleCell(cls, (), codec, attention) for cls in (Staggered, Scored) for codec in PER_VECTOR
                             for attention in scales.KV_HEADS)]
MASKS = masked.cells(masked.MODES)
FAMILIES: tuple[tuple[str, Sequence[Any], Sequence[Any], Sequence[Check]], ...] = (  # cells, those of every run, checks
    ("next-token", cells(), crossed(cells()), TOKEN), ("next-scale", SCALES, crossed(SCALES), SCALE),
    ("masked", MASKS, [cell for cell in MASKS if cell.codec in WHOLE], MASKED),
)  # fmt: skip


def params() -> Iterator[Any]:
    for family, family_cells, always, family_checks in FAMILIES:
        for param in sampled(family_cells, always):
            cell: Any = param.values[0]
            for check in family_checks:
                narrow = check is checks.neutral_is_full and "c_min" in dict(cell.mode)  # no budget replaces it; see test_scales.py
                if check in ELSEWHERE or narrow:
                    continue
                rarely = check is work_is_declared and cell.codec != "native" and not param.marks  # a codec has no matrix products
                yield pytest.param(*param.values, check, id=f"{family}-{param.id}-{check.__name__}",
                                   marks=pytest.mark.slow if rarely else param.marks)


@pytest.mark.parametrize(("cell", "check"), list(params()))
def test_a_method_passes(cell: Any, check: Check) -> None:
    try:
        assert not list(check(cell))
    except Unsupported as reason:
        pytest.skip(reason.message)
