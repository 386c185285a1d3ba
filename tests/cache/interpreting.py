"""Compares Triton's kernels, or copies of their files, with fp64 in Triton's interpreter: what the scripts of test_interpreted.py share."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from cachemark.cache import kernels
from cachemark.cache.kernels import decode_triton, fused_norms_triton, fused_products_triton, fused_triton, mass_triton, selection_triton

KERNELS = (  # imported before a copy takes their place
    decode_triton, fused_norms_triton, fused_products_triton, fused_triton, mass_triton, selection_triton)
CLOSE = {torch.float32: 2e-6, torch.float16: 2e-3}


def near(made: Tensor, right: Tensor) -> None:
    """Compare with fp64, with an error that a few roundings of the dtype explain."""
    torch.testing.assert_close(made.double(), right, rtol=CLOSE[made.dtype], atol=4 * CLOSE[made.dtype] * float(right.abs().max()))


def any_of(check: Callable[..., None], *strategies: Any, examples: int) -> Callable[[], None]:
    """Return the check of drawn shapes."""
    few = settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    return few(given(*strategies)(check))


def run(
    copies: Sequence[str], fixed: Mapping[str, Callable[[], None]], *others: Callable[[], None], anything: Sequence[Callable[[], None]],
) -> None:
    """Run all checks; for ``any`` those of drawn shapes alone. First print the copies that the ``fixed`` check of their file notices."""
    torch.use_deterministic_algorithms(True)  # new memory is NaN, so that a value that is not written shows
    if copies == ["any"]:
        for check in anything:
            check()
        return
    for copy in copies:
        name = Path(copy).stem
        assert name in {module.__name__.rpartition(".")[2] for module in KERNELS}, name
        spec = importlib.util.spec_from_file_location(f"cachemark.cache.kernels.copied_{name}", copy)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with patch.object(kernels, name, module, create=True):
            try:
                fixed[name]()
            except AssertionError:
                print(copy)
    for check in (*fixed.values(), *others):
        check()
