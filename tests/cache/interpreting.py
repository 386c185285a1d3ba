"""Compares Triton's kernels, or copies of their files, with fp64 in Triton's interpreter: what the scripts of test_interpreted.py share."""

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from triton.runtime import interpreter

from cachemark.cache import kernels
from cachemark.cache.kernels import decode_triton, fused_norms_triton, fused_products_triton, fused_triton, mass_triton, selection_triton

KERNELS = (  # imported before a copy takes their place
    decode_triton, fused_norms_triton, fused_products_triton, fused_triton, mass_triton, selection_triton)
CLOSE = {torch.float32: 2e-6, torch.float16: 2e-3}


def near(made: Tensor, right: Tensor) -> None:
    """Compare with fp64, with an error that a few roundings of the dtype explain."""
    torch.testing.assert_close(made.double(), right, rtol=CLOSE[made.dtype], atol=4 * CLOSE[made.dtype] * float(right.abs().max()))


def any_of(check: Callable[..., None], *strategies: Any, examples: int) -> Callable[[], None]:
    few = settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    return few(given(*strategies)(check))


class Checks:
    """Checks of kernels: the ``fixed`` ones of each file, which find faults; others, which know whether it is night; of drawn shapes."""

    def __init__(self, fixed: Mapping[str, Callable[[], None]], *others: Callable[[bool], None], anything: Sequence[Callable[[], None]]):
        self.fixed, self.others, self.anything = fixed, others, anything


def noticed(copy: str, checks: Sequence[Callable[[], None]]) -> bool:
    name = Path(copy).stem
    assert name in {module.__name__.rpartition(".")[2] for module in KERNELS}, name
    spec = importlib.util.spec_from_file_location(f"cachemark.cache.kernels.copied_{name}", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with patch.object(kernels, name, module, create=True):
        try:
            for check in checks:
                check()
        except AssertionError:
            return True
    return False


def patched_once(patched: set[str], patch: Callable[[Any], Any], function: Any) -> Any:
    """Have Triton exchange the functions of its language once for all kernels of a module, not for each launch and each call of a function.

    Nothing is restored: nothing here needs the language of the compiler."""
    if (module := function.__module__) not in patched:
        patched.add(module)
        patch(function)
    return SimpleNamespace(restore=lambda: None)


def run(time: str, copies: Sequence[str], every: Sequence[Checks]) -> None:
    """Run the checks of a ``time``: day, night, or any, for drawn shapes. First print the copies of kernels that they notice."""
    interpreter._patch_lang = functools.partial(patched_once, set(), interpreter._patch_lang)
    torch.use_deterministic_algorithms(True)  # new memory is NaN, so that a value that is not written shows
    for copy in copies:
        if noticed(copy, [checks.fixed[Path(copy).stem] for checks in every if Path(copy).stem in checks.fixed]):
            print(copy)
    for checks in every:
        for check in checks.anything if time == "any" else checks.fixed.values():
            check()
        for other in checks.others if time != "any" else ():
            other(time == "night")


if __name__ == "__main__":
    import interpreted_attention
    import interpreted_lines
    import interpreted_norms

    run(sys.argv[1], sys.argv[2:], [module.CHECKS for module in (interpreted_attention, interpreted_lines, interpreted_norms)])
