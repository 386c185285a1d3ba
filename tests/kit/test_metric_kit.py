"""The kit of a metric: each way to be wrong is found by the check that it belongs to, and shown at a few images."""

from __future__ import annotations

import linecache
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachemark.core import registry
from cachemark.kit.findings import Checked
from cachemark.kit.method_kit import check_metric, made_of_one
from cachemark.kit.metric_checks import METRIC, MetricExample
from cachemark.plugins import loading as plugins
from cachemark.workflows.prove import prove_metric
from support import examples
from support.stages import call, forgetting

AWAY = "return (shown.images - shown.reference).flatten(1).square().mean(1) / 8"
QUALITY, FIDELITY = 'kind = "quality"', 'kind = "fidelity"'
BROKEN = [  # the words of a check, what is replaced in the metric by what, where it is found, and what
    ("nothing else is read", "pass", "open(os.devnull).close()", "3 images of 16×16", "opens a file"),
    ("nothing else is read", "pass", "socket.socket().connect_ex(('127.0.0.1', 9))", "3 images of 16×16", "connects to a network"),
    ("class says what it is", 'better = "higher"', "", "the attributes of its class", "that of ImageMetric, 'higher'"),
    ("values are finite", "pass", "return grey.flatten(1).std(1).log()", "1 image of 16×16 pixels and 16 tokens (black)", "not fin"),
    ("values are finite", "clamp(-1, 1)|pass", "clamp(-9, 9)|return grey.flatten(1).amax(1)", "(a drawing beyond", "out of its range"),
    ("values are finite", "pass", "return grey.flatten(1).mean(1).amax(0, True)", "2 images of 16×16", "of shape (1,) for 2 images"),
    ("values are finite", "pass", "return 0.5", "1 image of 16×16", "a float for 1 images"),
    ("values are finite", "pass", "grey.no_such_thing", "1 image of 16×16", "AttributeError"),
    ("values are finite", "pass", "grey = grey.unfold(1, 64, 1)", "1 image of 16×16", "RuntimeError"),
    ("second measurement repeats", "pass", "grey = grey * torch.rand(())", "3 images of 16×16", "0."),
    ("values do not depend on the batch", "pass", "grey = grey / len(grey)", "1 image of 16×16", "0."),
    ("others do not matter", "pass", "grey = grey / (1 + grey.mean())", "3 images of 16×16", "beside white and white"),
    ("identical images score alike", "pass", "grey = grey / torch.arange(1, len(grey) + 1).view(-1, 1, 1)", "3 images of 16×16", "0."),
    ("kind is what it reads", "pass", AWAY, "1 image of 16×16", "beside drawing 2"),
    ("kind is what it reads", QUALITY, FIDELITY, "1 image of 16×16", "0."),
    ("kind is what it reads", f"{QUALITY}|pass", f"{FIDELITY}|{AWAY}", "1 image of 16×16 pixels and 16 tokens (drawing 2)", "0."),
    ("kind is what it reads", f"{QUALITY}|pass", f"{FIDELITY}|return torch.ones(len(grey))", "1 image of 16×16", "1 for all of them"),
    ("inputs are left alone", "pass", "shown.images.clamp_(-1, 1)", "4 images of 16×16", "others"),
    ("inputs are left alone", "pass", "shown.seeds.sort(reverse=True)", "4 images of 16×16", "others"),
    ("settings are left alone", "pass", "torch.backends.cuda.matmul.allow_tf32 = True", "3 images of 16×16", "matmul precision (TF32)"),
]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes the metric with some of its words replaced."""
    def written(old: str = "", new: str = "") -> Path:
        text = examples.METRIC
        for one, other in zip(old.split("|"), new.split("|"), strict=True):
            assert one in text
            text = text.replace(one, other) if one else text
        (tmp_path / "given.py").write_text(text)
        return tmp_path / "given.py"

    with forgetting():
        yield written


def example(file: Path) -> MetricExample:
    """The metric of a file, without a process of its own."""
    plugins.load(file)
    return MetricExample(registry.metrics.get("given"))


def checked(made: MetricExample, said: str) -> Checked:
    return made_of_one(next(check for check in METRIC if check.__name__.replace("_", " ") == said), made)


@pytest.mark.parametrize(("said", "old", "new", "place", "found"), BROKEN)
def test_what_is_wrong_is_found_at_a_small_example(said: str, old: str, new: str, place: str, found: str, write: Write) -> None:
    made = checked(example(write(old, new)), said)
    assert made.findings, made
    assert place in made.findings[0].place
    assert found in made.findings[0].found


@pytest.mark.parametrize(("old", "new"), [
    ("", ""),
    (f"{QUALITY}|pass|better = \"higher\"", f"{FIDELITY}|{AWAY}|better = \"lower\""),
    ("deterministic = True|pass", "deterministic = False|grey = grey * (1 - 1e-6 * torch.rand(()))"),
    ("pass", "if len(grey[0]) == 16: raise ValueError('too small')"),
], ids=["quality", "fidelity", "nearly the same", "one that refuses a size"])  # fmt: skip
def test_what_is_right_passes(old: str, new: str, write: Write) -> None:
    proof = check_metric(example(write(old, new)))
    assert [check for check in proof.checks if check.findings] == []
    assert proof.complete


def test_code_and_the_lines_that_a_warning_shows_are_read_by_python(write: Write) -> None:
    made = example(write("pass", "import linecache; linecache.getlines(__file__)"))
    linecache.clearcache()
    assert checked(made, "nothing else is read").passed


@pytest.mark.parametrize(("module", "found"), [("triton.runtime.cache", False), ("torch._inductor", False), ("tritonic", True)])
@pytest.mark.parametrize("asks", ["open(os.devnull).close()", "os.system('')"])
def test_what_a_compiler_asks_is_not_the_metrics(asks: str, module: str, found: bool, write: Write) -> None:
    made = example(write("pass", f"exec(\"import os, threading; {asks}\", {{'__name__': '{module}'}})"))
    assert bool(checked(made, "nothing else is read").findings) == found


def test_a_metric_that_refuses_every_size_is_not_passed(write: Write) -> None:
    proof = check_metric(example(write("pass", "raise ValueError('not made for that')")))
    assert not proof.complete
    left_out = [check.left_out for check in proof.checks if check.name == "values are finite"]
    assert left_out == ["It refuses images of all sizes that are tried: not made for that"]


def test_a_helper_that_no_statement_names_is_found_and_an_edit_of_one_is_another_metric(write: Write) -> None:
    file = write("pass", "import importlib, sys; sys.path.insert(0, os.path.dirname(__file__)); importlib.import_module('own_shades')")
    (file.parent / "own_shades.py").write_text("HALF = 0.5\n")
    try:
        found = checked(example(file), "nothing else is read").findings
    finally:
        sys.path.remove(str(file.parent))
        sys.modules.pop("own_shades", None)
    assert "own_shades is imported in another way" in [flaw.found for flaw in found]


@pytest.mark.fresh_process  # else what starts processes for tests may be started by the copy, and is left behind there
def test_the_command_prints_the_example_and_leaves_with_its_code(write: Write) -> None:
    found = call("test", "metric", write("pass", "return grey.flatten(1).std(1).log().abs()"))
    assert found.exit_code == 1
    assert "  FOUND     values are finite\n" in found.output
    assert "at 1 image of 16×16 pixels and 16 tokens (black), seed 3:\n" in found.output
    assert "found not finite, inf for image 0 of 1" in found.output
    assert call("test", "metric", write("pass", "raise ValueError('never')")).exit_code == 4
    assert call("test", "metric", "contrats").exit_code == 2
    own = call("test", "metric", "psnr")
    assert (own.exit_code, "is a metric of cachemark itself" in own.output + str(own.stderr)) == (2, True)


@pytest.mark.slow
def test_pytest_makes_each_check_a_test(write: Write, tmp_path: Path) -> None:
    file = write("pass", "grey = grey / len(grey)")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path),
         "--cachemark-metric", str(file), str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 9 passed" in done.stdout
    assert "as in a batch of 4; found" in done.stdout


def test_a_file_of_methods_has_no_metric(tmp_path: Path) -> None:
    with forgetting(), pytest.raises(Exception, match="registers no metric"):
        prove_metric(Path(__file__).parents[2] / "examples" / "cachemark-knorm" / "cachemark_knorm" / "method.py")
