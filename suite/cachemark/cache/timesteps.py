"""Timesteps of a diffusion process that is shorter than the one it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Unsupported

STEPS = 1000  # of the process that the head is trained on


def respaced(sections: Sequence[int]) -> tuple[int, ...]:
    """Return the timesteps of a shorter process, ascending.

    The 1000 steps are cut into equal sections; section i contributes ``sections[i]`` evenly spaced steps, both ends included. (100,) is
    MAR's own; (10, 0) takes ten of the first half. Raises Unsupported.
    """
    if not all(0 <= count <= STEPS // len(sections) for count in sections) or sum(sections) < 2:
        raise _unsupported(sections)
    chosen: list[int] = []
    start = 0
    for i, count in enumerate(sections):
        size = STEPS // len(sections) + (i < STEPS % len(sections))
        at, stride = 0.0, (size - 1) / max(count - 1, 1)
        for _ in range(count):
            chosen.append(start + round(at))  # halves to even, on a running sum: as the checkpoints were evaluated
            at += stride
        start += size
    return tuple(chosen)


def spaced(sections: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the sections of a process of ``count`` steps, for a model whose own process has these ``sections``.

    A model that takes one step per section, or leaves sections out, also does so with fewer steps. Raises Unsupported for more steps than
    the process has, or fewer than two.
    """
    if not 2 <= count <= STEPS:
        raise _unsupported((count,))
    return (1,) * count if set(sections) == {1} else tuple(count if section else 0 for section in sections)


def _unsupported(sections: Sequence[int]) -> Unsupported:
    return Unsupported(f"A diffusion of {STEPS} steps cannot be respaced to {', '.join(map(str, sections)) or 'nothing'}.",
                       remedy=f"Use 2 … {STEPS} steps.")
