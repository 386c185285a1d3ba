"""A uniform calibration for arithmetic on models without a measured one."""

from __future__ import annotations

from typing import Any

from ...cache.layout import Layout
from ..base import calibrations


def even(layout: Layout, method: str) -> str:
    """Register and return the digest of a uniform calibration of ``hack``, ``hackpp`` or ``ssd_heads``.

    All heads are alike, and attention to a scale or line is proportional to its tokens.
    """
    shape: dict[str, Any] = {"layers": layout.layers, "heads": layout.kv_heads}
    if not layout.scales:
        lines = [[[(line + 1) / layout.lines for line in range(layout.lines)]] * layout.kv_heads] * layout.layers
        return calibrations.remember(method, {"model": "even", **shape, "lines": layout.lines, "line": layout.line, "recency": lines})
    tokens = [side**2 for side in layout.scales]
    shares = [[own / sum(tokens[: made + 1]) * (source <= made) for source, own in enumerate(tokens)] for made in range(len(tokens))]
    tables = {name: [[value] * layout.kv_heads] * layout.layers for name, value in (("variance", 0.0), ("mass", shares))}
    return calibrations.remember(method, {"model": "even", **shape, "scales": list(layout.scales), **tables})
