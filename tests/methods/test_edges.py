"""Edges at which a method evicts and that its model never completes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from cachemark.cache.layout import Layout, Site, scale_steps
from cachemark.methods.base.evicting import Evicting


@dataclass
class OfNoEdge(Evicting):
    """Evicts after an edge of a next-token model."""

    name = "of no edge"
    paradigms = ("next-token", "next-scale")


@pytest.mark.parametrize("edge", ["token", "line"])
def test_a_next_scale_model_has_no_lines_to_evict_by(edge: str) -> None:
    layout = Layout("next-scale", (1,), 0, 0, 2, 2, 4, 1, seeds=(0,), branches=(0,), dtype=torch.float32, scales=(1, 2, 4))
    method = type("Edged", (OfNoEdge,), {"evict_after": edge})(B=3)
    seen = [method.attended(layout, Site("decoder", 0), step) for step in scale_steps(layout)]
    assert seen == [1 + 0 + 1, 1 + 1 + 4, 1 + 3 + 16]
    assert [method.evicted(layout, step) for step in scale_steps(layout)] == [0, 0, 0]
