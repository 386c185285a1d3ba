"""The manifest of a batch of images: its plan, case, code, seeds and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.spec import Case
from .reuse import code_identity


def manifest(case: Case, labels: Sequence[int], seeds: Sequence[int], prompts: Sequence[str] = (), plan: str = "") -> dict[str, Any]:
    """Return plan, case, commit, and seed and label (the number of the prompt) of each image, in order."""
    code = code_identity()
    texts = {"prompts": list(prompts)} if prompts else {}
    return {"plan": plan, "case": case.to_json(), "title": case.title, "commit": code["commit"], "code": code, "seeds": list(seeds),
            "labels": list(labels), **texts}  # fmt: skip
