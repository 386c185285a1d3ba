"""FLOPs of next-scale generations against numbers that were computed independently, to the FLOP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.models import infinity, var
from cachemark.roofline.scale_flops import by_pass, image_flops, work

PUBLISHED = json.loads(Path(__file__).with_name("flops_budgets.json").read_text())["models"]
TEXT = 32  # entries of a text
SIZES = {
    "VAR-d30 256": var.SIZES["d30"], "VAR-d36 512": var.SIZES["d36-512"], "Infinity-2B 1024": infinity.SIZES["2B"],
    "Infinity-8B 1024": infinity.SIZES["8B"],
}
PARTS = {"linear": "matmul", "attention": "attention", "logits": "logits", "input": "input"}


def layout(name: str, batch: int = 1) -> Layout:
    """Return the layout of a guided generation in bf16."""
    config = SIZES[name]
    schedule = "linear" if isinstance(config, var.VARConfig) else "constant"
    text = {} if isinstance(config, var.VARConfig) else {"text": TEXT}
    return config.layout(range(batch), Sampling(cfg_scale=4.0, cfg_schedule=schedule), torch.bfloat16, **text)


@pytest.mark.parametrize("name", SIZES)
def test_the_full_cache_computes_the_published_flops(name: str) -> None:
    published = PUBLISHED[name]
    parts, scales = work(Method(), layout(name)), by_pass(Method(), layout(name))
    assert {part: parts[ours] for part, ours in PARTS.items()} == published["parts"]
    assert sum(parts.values()) == published["total"] == image_flops(Method(), layout(name, batch=3))
    assert [sum(scale.values()) for scale in scales] == [scale["flops"] for scale in published["per scale"]]
    assert [scale["attention"] for scale in scales] == [scale["attention"] for scale in published["per scale"]]
