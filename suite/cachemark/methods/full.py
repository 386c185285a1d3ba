"""The full cache: every entry kept, attention on the live ones only. The baseline of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import registry
from ..cache.method import Method


@registry.methods.add("full")
@dataclass
class Full(Method):
    """Keeps everything. The fastest plain cache we can write: preallocated, no mask, no padding, no concatenation."""

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "the baseline"
