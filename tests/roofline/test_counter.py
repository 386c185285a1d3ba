"""FLOPs of products as torch dispatches them, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.roofline.flops import counted

A, B, V = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
MANY, OTHERS = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
PRODUCTS: dict[str, tuple[Callable[[], object], int]] = {
    "mm": (lambda: A @ B, 120), "mv": (lambda: A.mv(V), 24), "addmv": (lambda: torch.addmv(torch.zeros(3), A, V), 24),
    "dot": (lambda: V.dot(V), 8), "vdot": (lambda: torch.vdot(V, V), 8), "inner": (lambda: torch.inner(V, V), 8),
    "vecdot": (lambda: torch.linalg.vecdot(A, A), 24), "outer": (lambda: V.outer(V), 32), "ger": (lambda: torch.ger(V, V), 32),
    "addr": (lambda: torch.addr(torch.zeros(4, 4), V, V), 32), "addbmm": (lambda: torch.addbmm(torch.zeros(3, 5), MANY, OTHERS), 240),
    "baddbmm": (lambda: torch.baddbmm(torch.zeros(2, 3, 5), MANY, OTHERS), 240), "cdist": (lambda: torch.cdist(A, A), 72),
    "cdist by sums": (lambda: torch.cdist(MANY, MANY, p=1), 144), "batch times vector": (lambda: MANY @ V, 48),
    "vector times matrix": (lambda: V @ B, 40), "einsum": (lambda: torch.einsum("bij,j->bi", MANY, V), 48),
    "tensordot": (lambda: torch.tensordot(MANY, V, 1), 48), "linear of a vector": (lambda: torch.nn.functional.linear(V, A), 24),
    "_int_mm": (lambda: torch._int_mm(torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)), 8192),
    "multi_dot": (lambda: torch.linalg.multi_dot([A, B]), 120), "sum": (lambda: A.sum() + A.norm(), 0),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_flops_of_its_shapes(name: str, mode: Callable[[], torch.no_grad]) -> None:
    run, flops = PRODUCTS[name]
    with mode():
        assert counted(run) == flops


@pytest.mark.parametrize("run", [
    lambda: torch.nn.functional.bilinear(A, A, torch.randn(6, 4, 4)), lambda: torch.linalg.solve(torch.eye(4), V),
])
def test_a_product_without_a_formula_is_refused(run: Callable[[], object]) -> None:
    with pytest.raises(Unsupported, match=r"The FLOPs of \w+ cannot be counted"):
        counted(run)
