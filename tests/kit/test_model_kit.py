"""The kit of a model: each way to be wrong is found by the check that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.kit.findings import Checked
from cachemark.kit.method_kit import made_of_one
from cachemark.kit.model_checks import MODEL, ModelExample
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
BROKEN: dict[str, tuple[str, str, str]] = {  # by the words of the check: what is replaced in the model's file, by what, and what is found
    "entry says what is loaded": ("range(batch), sampling, torch.float32", "range(batch + 1), sampling, torch.float32", "rows"),
    "images are images": ("return grey.repeat_interleave(4, 2)", "return 100 * grey.repeat_interleave(4, 2)", "up to"),
    "forced tokens are followed": ("BODY", "        forced = None", "something else along other tokens"),
    "samples are the same in any batch": ("BODY", "        labels = labels + len(seeds) % 2", "among three"),
    "second generation repeats": ("BODY", "        seeds = [int(torch.randint(0, 1000, ())) for _ in seeds]", "random numbers"),
    "weights and settings are left alone": ("BODY", "        self.output.weight.data *= 1.01", "weights as they were"),
    "every site is asked once a pass": (
        "BODY", "        end = method.end_step\n        method.end_step = lambda step: end(step) if step.index != 3 else None", "end_step"),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def written(old: str, new: str) -> Path:
        text = examples.MODEL.split("@cm.method")[0]
        if old == "BODY":
            text = text.replace("CONFIG =", WRAP.format(body=new) + "\nCONFIG =", 1).replace("llamagen.LlamaGen, CONFIG", "Wrapped, CONFIG")
        else:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "dot.py").write_text(text)
        return tmp_path / "dot.py"

    return written


def checked(file: Path, words: str) -> Checked:
    (name,) = names_of("models", file)
    check = next(c for c in MODEL if c.__name__.replace("_", " ") == words)
    return made_of_one(check, ModelExample(MODELS.get(name)))


@pytest.mark.parametrize("words", BROKEN)
def test_what_is_wrong_is_found(words: str, write: Callable[[str, str], Path]) -> None:
    old, new, said = BROKEN[words]
    found = checked(write(old, new), words)
    assert found.findings, found
    assert said in "; ".join(f"{one.expected} {one.found}" for one in found.findings)


def test_the_unbroken_model_passes_and_the_command_says_so(write: Callable[[str, str], Path]) -> None:
    done = call("test", "model", write("grey", "grey"))
    assert done.exit_code == 0, done.output
    assert "12 checks: 11 passed, 0 found something, 1 left out." in done.output
