"""The FLOPs of an image decoder, which every worker process counts."""

from __future__ import annotations

import sys

import pytest

from cachemark.models.registry import MODELS
from cachemark.roofline.flops import counted


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-var", "tiny-mar", "tiny-t2i"])
def test_bundled_decoders_are_counted_without_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device imports it, which takes seconds in every process."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it fails
    image = MODELS.get(name).parameter_counts().image
    assert counted(image) > 0
    assert image().device.type == "cpu"
