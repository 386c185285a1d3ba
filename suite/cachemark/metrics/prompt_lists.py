"""The prompts that a benchmark of text-to-image models needs."""

from __future__ import annotations

from ..core.errors import Unsupported
from ..models.prompt_lists import PromptList, prompt_list
from .base import MetricContext


def benchmark_prompts(setting: MetricContext, kind: str, file: str, source: str) -> PromptList:
    """Return the prompts of a benchmark. Raises Unsupported, with how to get them, if the plan uses others."""
    prompts = prompt_list(setting.prompt_list) if setting.prompt_list else None
    if prompts is None or prompts.kind != kind:
        raise Unsupported(f"not measured: needs its own prompts, named under fidelity.prompts, get them with: curl -LO {source}{file}")
    return prompts
