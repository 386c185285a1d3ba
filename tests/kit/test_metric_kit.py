"""The kits of a metric and of a model: every fault is found by its check, of a metric with a few images that show it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachemark.core import registry
from cachemark.kit.findings import KitResult
from cachemark.kit.metric_checks import MetricExample
from cachemark.kit.runner import metric_checks, model_checks
from cachemark.models.registry import MODELS
from cachemark.plugins import loading as plugins
from cachemark.workflows.prove import names_of
from support import examples
from support.stages import call, forgetting
from support.wheels import ROOT

FAULTS = [  # a check, what is replaced in the metric by what, the location of the finding, and words of it
    ("attributes are set", 'better = "higher"', "", "the attributes of its class", "inherited from ImageMetric, 'higher'"),
    ("values are valid", "pass", "return grey.flatten(1).std(1).log()", "1 image of 16×16 pixels and 16 tokens (black)", "not fin"),
    ("values are valid", "clamp(-1, 1)|pass", "clamp(-9, 9)|return grey.flatten(1).amax(1)", "(noise beyond", "out of its range"),
    ("values are valid", "pass", "return grey.flatten(1).mean(1).amax(0, True)", "2 images of 16×16", "of shape (1,) for 2 images"),
    ("values are valid", "pass", "grey.no_such_thing", "1 image of 16×16", "AttributeError"),
    ("values are the same in any batch", "pass", "grey = grey / len(grey)", "3 images of 16×16", "0."),
    ("values are the same in any batch", "pass", "grey = grey / (1 + grey.mean())", "3 images of 16×16", "0."),
    ("values are the same in any batch", "pass", "grey = grey * torch.rand(())", "3 images of 16×16", "0."),
]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes the metric with some of its words replaced."""
    def write(old: str = "", new: str = "") -> Path:
        text = examples.METRIC
        for before, after in zip(old.split("|"), new.split("|"), strict=True):
            assert before in text
            text = text.replace(before, after) if before else text
        (tmp_path / "given.py").write_text(text)
        return tmp_path / "given.py"

    with forgetting():
        yield write


def checked(file: Path) -> dict[str, KitResult]:
    plugins.load(file)
    return {check.name: check.run() for check in metric_checks(MetricExample(registry.metrics.get("given")))}


@pytest.mark.parametrize(("check", "old", "new", "location", "words"), FAULTS)
def test_a_fault_is_found(check: str, old: str, new: str, location: str, words: str, write: Write) -> None:
    finding = checked(write(old, new))[check].findings[0]
    assert location in finding.location
    assert words in finding.actual
    assert finding.expected != finding.actual


def test_a_correct_metric_passes_and_one_that_refuses_every_size_does_not(write: Write) -> None:
    assert [result.passed for result in checked(write()).values()] == [True] * 3
    results = checked(write("pass", "raise ValueError('not made for that')")).values()
    assert not any(result.passed for result in results)
    assert {result.skipped for result in results} == {"It refuses images of every size that is tried: not made for that"}


@pytest.mark.parametrize(("metric", "code", "words"), [
    ("return grey.flatten(1).std(1).log().abs()", 1, "at 1 image of 16×16 pixels and 16 tokens (black), seed 3:\n"),
    ("raise ValueError('never')", 4, "0 passed, 0 failed, 3 skipped"),
    ("contrats", 2, "contrats"), ("psnr", 2, "is a metric of cachemark itself"),
    (ROOT / "examples/cachemark-knorm/cachemark_knorm/method.py", 2, "no metric"),
])  # fmt: skip
def test_the_command_prints_the_example_and_exits_with_its_code(metric: str | Path, code: int, words: str, write: Write) -> None:
    done = call("test", "metric", metric if code == 2 else write("pass", metric))
    assert done.exit_code == code
    assert words in done.output + str(done.stderr)


# -- models -----------------------------------------------------------------------------------------------------------
WRAP = """
class Wrapped(llamagen.LlamaGen):
    def generate(self, labels, seeds, method, sampling, memory, *, forced=None, see=None, mark=None):
{body}
        return super().generate(labels, seeds, method, sampling, memory, forced=forced, see=see, mark=mark)
"""
MODEL_FAULTS: dict[str, tuple[str, str, str]] = {  # by check: what is replaced in the model's file, by what, and words of the finding
    "entry matches the model": ("range(batch), sampling)", "range(batch + 1), sampling)", "rows"),
    "images are valid": ("return grey.repeat_interleave(4, 2)", "return 100 * grey.repeat_interleave(4, 2)", "up to"),
    "forced tokens are followed": ("BODY", "        forced = None", "different logits along other tokens"),
    "samples are the same in any batch": ("BODY", "        labels = labels + len(seeds) % 2", "batch of three"),
    "second generation repeats": ("BODY", "        seeds = [int(torch.randint(0, 1000, ())) for _ in seeds]", "the first generation"),
    "weights and settings are unchanged": ("BODY", "        self.output.weight.data *= 1.01", "unchanged weights"),
    "every site is called once per step": (
        "BODY", "        end = method.end_step\n        method.end_step = lambda step: end(step) if step.index != 3 else None", "end_step"),
}  # fmt: skip


def write_model(file: Path, old: str = "", new: str = "") -> Path:
    text = examples.MODEL.split("@cm.method")[0]
    if old == "BODY":
        text = text.replace("CONFIG =", WRAP.format(body=new) + "\nCONFIG =", 1).replace("llamagen.LlamaGen, CONFIG", "Wrapped, CONFIG")
    elif old:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return file


@pytest.mark.parametrize("check", MODEL_FAULTS)
def test_a_fault_of_a_model_is_found(check: str, tmp_path: Path) -> None:
    old, new, words = MODEL_FAULTS[check]
    (name,) = names_of("models", write_model(tmp_path / "dot.py", old, new))
    result = next(planned for planned in model_checks(MODELS.get(name)) if planned.name == check).run()
    assert result.findings
    assert words in "; ".join(f"{finding.expected} {finding.actual}" for finding in result.findings)


def test_a_correct_model_passes(tmp_path: Path) -> None:
    done = call("test", "model", write_model(tmp_path / "dot.py"))
    assert done.exit_code == 0, done.output
    assert "model dot: 11 passed, 0 failed, 1 skipped" in done.output
