"""Metrics of plug-ins in a trial: their figures, and every way to have none, which costs the case nothing else."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from cachemark.core import plugins
from cachemark.core.outside_metrics import FAULTS, KEY
from cachemark.core.result import Outcome
from cachemark.core.units import metric
from cachemark.machine.keeper import children
from cachemark.metrics.image_metric import Shown
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.metrics import metrics_of
from cachemark.trial.child import metric_host, metric_judge, metric_process
from cachemark.trial.child.bench import Bench
from cachemark.trial.child.measure import run_case
from cachemark.trial.child.metric_host import LENGTH, Fault, MetricHost
from support import examples
from support.stages import forgetting

SAMPLES = 4
METRICS = '''
import os
import signal

import torch

from cachemark.core import registry
from cachemark.metrics.image_metric import ImageMetric


def answers(name, measure, **attributes):
    body = {"__doc__": "What a test asks.", "name": name, "measure": lambda self, shown: measure(shown), "__module__": __name__}
    registry.metrics.add(name)(type(name, (ImageMetric,), {**body, **attributes}))


def grey(shown):
    print("not an answer")
    return shown.images.mean((1, 2, 3))


answers("grey", grey, within=(-1, 1))
answers("ends", lambda shown: os._exit(7))
answers("raises", lambda shown: shown.images.no_such_thing)
answers("nan", lambda shown: grey(shown) / 0 * 0)
answers("matrix", lambda shown: shown.images)
answers("number", lambda shown: 0.5)
answers("far", lambda shown: grey(shown) + 5, within=(-1, 1))
'''


@pytest.fixture(autouse=True, scope="module")
def file(folder: Path) -> Iterator[Path]:
    path = folder / "judges_of_images.py"
    path.write_text(METRICS)
    with forgetting():
        plugins.load(folder / "dot.py")
        plugins.load(path)
        yield path


@pytest.fixture(scope="module")
def outcome(folder: Path, file: Path) -> tuple[Outcome, dict[str, bytes]]:
    """Of an arm that a metric which answers and one which ends its process look at."""
    text = examples.plan_text('"streaming"', weights=folder / "dot.safetensors")
    (folder / "plan.toml").write_text(text)
    plan = plans.load(str(folder / "plan.toml")).judged_by(["grey", "ends"])
    cases = [planned for planned in expand(plan) if planned.case.role == "arm"]
    return run_case(cases[0], Bench.load(cases[0], plug_ins=(str(file),)))


def named(outcome: Outcome, name: str) -> str:
    (found,) = (whole for whole in outcome.case.evaluation[KEY] if whole.startswith(f"{name}_"))
    return found


def test_a_metric_has_one_figure_for_each_seed_and_they_are_those_of_its_code(outcome: tuple[Outcome, dict[str, bytes]]) -> None:
    """A token of the small model is a square of its own grey."""
    found, files = outcome
    expected = (load(files["tokens.safetensors"])["tokens"].double() / 7.5 - 1).mean(1).tolist()
    assert found.samples[named(found, "grey")] == pytest.approx(expected, abs=1e-6)
    assert metric(named(found, "grey")).within == (-1, 1)


def test_one_that_ends_its_process_is_told_and_the_case_keeps_all_else(outcome: tuple[Outcome, dict[str, bytes]]) -> None:
    found, _ = outcome
    name = named(found, "ends")
    assert found.ok
    assert {"latency", "kv_allocated", "psnr", named(found, "grey")} <= set(found.samples)
    assert name not in found.samples
    assert found.facts[FAULTS] == {name: {"fault": "ended its process", "said": "with exit code 7"}}
    assert [note for note in found.facts["footnotes"] if name in note]


def shown() -> Shown:
    images = torch.rand(SAMPLES, 3, 8, 8)
    return Shown(images, images, torch.arange(SAMPLES * 2).view(SAMPLES, 2), torch.zeros(SAMPLES, 2), list(range(SAMPLES)), [5, 6, 7, 8])


def answered(file: Path, name: str) -> dict[str, Any]:
    """What the process of a metric answers, in this process."""
    answers = io.BytesIO()
    metric_process._serve(str(file), name, io.BytesIO(metric_host._packed(shown())), answers)
    told: dict[str, Any] = json.loads(answers.getvalue()[LENGTH.size :])
    return told


@pytest.mark.parametrize(("name", "fault"), [
    ("raises", "raised"), ("nan", "not finite"), ("matrix", "wrong shape"), ("number", "wrong shape"), ("far", "out of its range"),
])  # fmt: skip
def test_what_is_no_figure_is_told_by_its_kind(name: str, fault: str, file: Path) -> None:
    assert answered(file, name)["fault"] == fault
    assert len(answered(file, "grey")["values"]) == SAMPLES


def test_what_is_sent_arrives() -> None:
    """Also images whose channels lie last in memory, as some decoders leave them."""
    sent = shown()
    sent = replace(sent, images=sent.images.contiguous(memory_format=torch.channels_last), tokens=sent.tokens.T.contiguous().T)
    assert not sent.images.is_contiguous()
    arrived = metric_process._shown(metric_host._packed(sent)[LENGTH.size :])
    assert torch.equal(sent.images, arrived.images)
    assert torch.equal(sent.tokens, arrived.tokens)
    assert (arrived.labels, arrived.seeds) == (sent.labels, sent.seeds)


def test_one_that_does_not_answer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEMARK_IMPORT_LIMIT", "0.1")
    back, to = os.pipe()
    with pytest.raises(Fault) as found:
        metric_host._answer(back, 0.0)
    assert found.value.fault == "late"
    os.close(back)
    os.close(to)


def test_an_edited_file_measures_nothing_under_the_old_name(outcome: tuple[Outcome, dict[str, bytes]], tmp_path: Path) -> None:
    stated, name = outcome[0].case.evaluation[KEY], named(outcome[0], "grey")
    (tmp_path / "edited.py").write_text(METRICS + "\n")
    samples, facts = metric_judge.metric_figures([name], stated, shown(), [str(tmp_path / "edited.py")], 2, lambda images: None,
                                                 MetricHost())
    assert samples == {}
    assert facts[FAULTS][name]["fault"] == "changed"


def test_a_file_brings_its_metrics(file: Path) -> None:
    assert metrics_of([file]) == ["ends", "far", "grey", "matrix", "nan", "number", "raises"]


REMEMBERS = METRICS + '''
import builtins
import signal
import threading


def counted(shown):
    builtins.asked_before = getattr(builtins, "asked_before", 0) + 1
    return torch.full((len(shown.images),), float(builtins.asked_before))


def hidden(shown):
    import importlib, sys
    sys.path.insert(0, os.path.dirname(__file__))
    importlib.import_module("unseen_shades")
    return grey(shown)


answers("counts", counted)
answers("hides", hidden)
answers("kills", lambda shown: os.kill(os.getppid(), signal.SIGKILL) or threading.Event().wait())
answers("leaves", lambda shown: exit(5))
'''


def test_each_case_has_a_copy_of_one_host_that_knows_of_no_other(tmp_path: Path) -> None:
    """What ends a copy ends neither the host nor what is measured next, and nothing of one case is there in another."""
    file = tmp_path / "remembers.py"
    file.write_text(REMEMBERS)
    (tmp_path / "unseen_shades.py").write_text("HALF = 0.5\n")

    def figures(host: MetricHost, name: str, times: int = 1) -> list[float]:
        with host.measuring(str(file), name) as asked:
            return [asked(shown())[0] for _ in range(times)]

    def fault(host: MetricHost, name: str) -> str:
        try:
            figures(host, name)
        except Fault as found:
            return f"{found.fault}: {found.said}"
        return ""

    def orphaned(host: MetricHost, process: int) -> str:
        try:
            with host.measuring(str(file), "ends") as asked:
                os.kill(process, signal.SIGKILL)
                os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
                asked(shown())
        except Fault as found:
            return f"{found.fault}: {found.said}"
        return ""

    before, host = children(), MetricHost()
    line = host.start()
    assert figures(host, "counts", 3) == [1, 2, 3]
    assert figures(host, "counts") == [1]
    assert fault(host, "ends") == "ended its process: with exit code 7"
    assert fault(host, "leaves") == "ended its process: with exit code 5"
    assert fault(host, "kills") == "ended its process: by signal 9"
    assert "no_such_thing" in fault(host, "raises")
    assert "unseen_shades" in fault(host, "hides")
    assert figures(host, "counts") == [1]
    assert host.start() is line
    assert len(children() - before) == 1
    assert orphaned(host, *children() - before) == "its host ended: by signal 9; whether the metric did that is not known"
    assert figures(host, "counts") == [1], "a new host"
    del host, line
    assert children() <= before
