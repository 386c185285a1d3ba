"""Names of methods and decoders as their papers print them."""

from __future__ import annotations

import re

NAMES = {
    "streaming": "StreamingLLM", "h2o": "H2O", "rkv": "R-KV", "linear": "LineAR", "ssd_heads": "SSD heads", "ams_kv": "AMS-KV",
    "scalekv": "ScaleKV", "heatkv": "HeatKV", "hack": "HACK", "hackpp": "HACK++", "lazymar": "LazyMAR", "marche": "MARché", "gtr": "GtR",
    "fewer_steps": "fewer steps", "scale_groups": "scale groups", "random_tokens": "random tokens",
    "jacobi": "Jacobi", "sjd": "SJD", "scd": "SCD",
}  # fmt: skip
_NAME = re.compile(rf"(?<!\S)(?:{'|'.join(NAMES)})(?=$|[ :])")


def display_name(label: str) -> str:
    """Return a label such as ``linear 1/4 + sjd`` with the papers' names: ``LineAR 1/4 + SJD``."""
    return _NAME.sub(lambda match: NAMES[match[0]], label)
