"""The kit of a model: every fault is found by its check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.kit.runner import model_checks
from cachemark.models.registry import MODELS
from cachemark.workflows.prove import names_of
from support import examples
from support.stages import call

WRAP = """
class Wrapped(llamagen.LlamaGen):
    def generate(self, labels, seeds, method, sampling, memory, *, forced=None, see=None, mark=None):
{body}
        return super().generate(labels, seeds, method, sampling, memory, forced=forced, see=see, mark=mark)
"""
FAULTS: dict[str, tuple[str, str, str]] = {  # by check: what is replaced in the model's file, by what, and words of the finding
    "entry matches the model": ("range(batch), sampling)", "range(batch + 1), sampling)", "rows"),
    "images are valid": ("return grey.repeat_interleave(4, 2)", "return 100 * grey.repeat_interleave(4, 2)", "up to"),
    "forced tokens are followed": ("BODY", "        forced = None", "different logits along other tokens"),
    "samples are the same in any batch": ("BODY", "        labels = labels + len(seeds) % 2", "batch of three"),
    "second generation repeats": ("BODY", "        seeds = [int(torch.randint(0, 1000, ())) for _ in seeds]", "the first generation"),
    "weights and settings are unchanged": ("BODY", "        self.output.weight.data *= 1.01", "unchanged weights"),
    "every site is called once per step": (
        "BODY", "        end = method.end_step\n        method.end_step = lambda step: end(step) if step.index != 3 else None", "end_step"),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(old: str, new: str) -> Path:
        text = examples.MODEL.split("@cm.method")[0]
        if old == "BODY":
            text = text.replace("CONFIG =", WRAP.format(body=new) + "\nCONFIG =", 1).replace("llamagen.LlamaGen, CONFIG", "Wrapped, CONFIG")
        else:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "dot.py").write_text(text)
        return tmp_path / "dot.py"

    return write


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_is_found(check: str, write: Callable[[str, str], Path]) -> None:
    old, new, words = FAULTS[check]
    (name,) = names_of("models", write(old, new))
    result = next(planned for planned in model_checks(MODELS.get(name)) if planned.name == check).run()
    assert result.findings
    assert words in "; ".join(f"{finding.expected} {finding.actual}" for finding in result.findings)


def test_a_correct_model_passes(write: Callable[[str, str], Path]) -> None:
    done = call("test", "model", write("grey", "grey"))
    assert done.exit_code == 0, done.output
    assert "model dot: 11 passed, 0 failed, 1 skipped" in done.output
