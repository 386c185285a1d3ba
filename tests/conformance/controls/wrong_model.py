"""A negative control: an error in a model, and the checks that must notice it. Errors that several families can have are made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.models import sampling

from ..checks import Vector

Patch = pytest.MonkeyPatch
Build = Callable[[Vector], Any]


@dataclass(frozen=True)
class WrongModel:
    """``make`` gets the reader's build function, so that it can patch the code before or change the subject after."""

    name: str
    checks: tuple[str, ...]
    make: Callable[[Build, Vector, Patch], Any]
    nightly: bool = False


def names(text: str) -> tuple[str, ...]:
    """Names of checks; ``codes_AB`` stands for ``codes_A`` and ``codes_B``."""
    return tuple(full for name in text.split() for full in ((f"{name[:-1]}", f"{name[:-2]}B") if name.endswith("_AB") else (name,)))


def patched(name: str, checks: str, owner: Any, attribute: str, wrong: Callable[[Any], Any]) -> WrongModel:
    """``wrong`` makes the attribute from the right one."""

    def make(build: Build, vector: Vector, patch: Patch) -> Any:
        patch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
        return build(vector)

    return WrongModel(name, names(checks), make)


def changed(name: str, checks: str, change: Callable[[Any], Any]) -> WrongModel:
    """``change`` alters the built subject, or returns another in its place."""

    def make(build: Build, vector: Vector, patch: Patch) -> Any:
        subject = build(vector)
        other = change(subject)
        return subject if other is None else other

    return WrongModel(name, names(checks), make)


def with_eps(module: nn.Module, kinds: type | tuple[type, ...], eps: float) -> None:
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.eps = eps  # type: ignore[assignment]


def guide_too_far(_: Any) -> Callable[..., Tensor]:
    """c + (c − u)·w."""
    return lambda logits, setting, place: sampling.guide(logits, replace(setting, cfg_scale=setting.cfg_scale + 1), place)


def end_step_that_loses_a_key(right: Callable[..., None]) -> Callable[..., None]:
    """The cache keeps one entry too few from the sixth step on."""

    def end_step(method: Method, step: Any) -> None:
        right(method, step)
        if step.index == 5:
            for slot in method.slots.values():
                slot.live = [n - 1 for n in slot.live]

    return end_step


def top_p_without_the_crossing_token(right: Callable[[Tensor, Sampling], Tensor]) -> Callable[[Tensor, Sampling], Tensor]:
    def wrong(logits: Tensor, setting: Sampling) -> Tensor:
        filtered = right(logits, setting)
        if setting.top_p == 1:
            return filtered
        last = filtered.masked_fill(filtered.isinf(), float("inf")).argmin(-1, keepdim=True)
        return filtered.scatter(-1, last, float("-inf"))

    return wrong


def pad_on_all_sides(module: nn.Module, kinds: type) -> None:
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.forward = lambda x, conv=layer.conv: F.conv2d(  # type: ignore[method-assign,union-attr]
                x, conv.weight, conv.bias, stride=2, padding=1)


def rounded_bytes(images: Tensor) -> Tensor:
    """Nearest bytes where the authors truncate."""
    return ((images + 1) / 2 * 255).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)
