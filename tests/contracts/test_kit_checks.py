"""Every method passes every check of the kit: method and mode × codec × kind of attention."""

from __future__ import annotations

from typing import Any

import pytest

from cachemark.kit import batches, manner_checks
from cachemark.kit.method_kit import SCALE, TOKEN, Check
from cachemark.kit.next_token import Cell
from cachemark.kit.scale_checks import neutral_is_full, nothing_is_read_on_the_host, rows_are_the_same_in_another_order
from cachemark.kit.work_checks import scale_work_is_declared

from . import scales
from .cells import cells, halved

ELSEWHERE = (batches, manner_checks)  # test_batch.py runs more samples; manners do not depend on the codec (tests/kit)
TOKEN_CHECKS = [check for check in TOKEN if check.__module__ not in {module.__name__ for module in ELSEWHERE}
                and check.__name__ != "graph_is_eager"]  # test_graph.py runs more samplings
HOST_FREE = (nothing_is_read_on_the_host, rows_are_the_same_in_another_order, scale_work_is_declared)  # not if decided on the host


def named(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", TOKEN_CHECKS, ids=named)
@pytest.mark.parametrize("cell", halved(cells()))
def test_a_next_token_method_passes(cell: Cell, check: Any) -> None:
    assert not list(check(cell))


@pytest.mark.parametrize("check", [check for check in SCALE if check is not neutral_is_full], ids=named)
@pytest.mark.parametrize("cell", scales.cells(), ids=scales.label)
def test_a_next_scale_method_passes(cell: scales.ScaleCell, check: Any) -> None:
    if check in HOST_FREE and cell.online:
        pytest.skip("decides on the host")
    assert not list(check(cell))
