"""Metrics of plug-ins in a trial: their values, and every way to have none, which costs the case nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from cachemark.core.outside_metrics import KEY
from cachemark.core.result import Outcome
from cachemark.core.units import metric
from cachemark.metrics.base import ImageBatch
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.metrics import defined
from cachemark.plans.planned import Prepared
from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from cachemark.trial.child.plugin_metrics import PluginMetrics
from support import examples
from support.measuring import run_case
from support.stages import forgetting

SAMPLES = 4
METRICS = '''
from cachemark.core import registry
from cachemark.metrics.base import ImageMetric


def answers(name, measure, **attributes):
    body = {"__doc__": "What a test asks.", "name": name, "measure": lambda self, batch: measure(batch), "__module__": __name__}
    registry.metrics.add(name)(type(name, (ImageMetric,), {**body, **attributes}))


def grey(batch):
    return batch.images.mean((1, 2, 3))


answers("grey", grey, within=(-1, 1))
answers("raises", lambda batch: batch.images.no_such_thing)
answers("exits", lambda shown: exit(5))
answers("nan", lambda shown: grey(shown) / 0 * 0)
answers("matrix", lambda batch: batch.images)
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
def measured(folder: Path, file: Path) -> tuple[Outcome, dict[str, bytes]]:
    """The outcome and artifacts of a case with a metric that gives values and one that raises."""
    (folder / "plan.toml").write_text(examples.plan_text('"streaming"', weights=folder / "dot.safetensors"))
    plan = plans.load(str(folder / "plan.toml")).model_copy(update={"metrics": ["grey", "raises"]})
    candidate = next(Prepared.of(planned) for planned in expand(plan) if planned.case.role == "candidate")
    return run_case(candidate, Bench.load(candidate, plug_ins=(str(file),)))


def full_name(outcome: Outcome, name: str) -> str:
    (only,) = (full for full in outcome.case.evaluation[KEY] if full.startswith(f"{name}_"))
    return only


def test_a_metric_has_one_value_per_seed_computed_by_its_code(measured: tuple[Outcome, dict[str, bytes]]) -> None:
    """A token of the small model is a square of its own grey."""
    outcome, files = measured
    expected = (load(files["tokens.safetensors"])["tokens"].double() / 7.5 - 1).mean(1).tolist()
    assert outcome.samples[full_name(outcome, "grey")] == pytest.approx(expected, abs=1e-6)
    assert metric(full_name(outcome, "grey")).within == (-1, 1)


def test_an_exception_names_the_metric_and_its_line_and_the_case_keeps_all_else(
    measured: tuple[Outcome, dict[str, bytes]], file: Path,
) -> None:
    outcome, _ = measured
    name, line = full_name(outcome, "raises"), METRICS[: METRICS.index("no_such_thing")].count("\n") + 1
    assert outcome.ok
    assert {"latency", "kv_allocated", "psnr", full_name(outcome, "grey")} <= set(outcome.samples)
    assert name not in outcome.samples
    assert outcome.facts.metric_faults[name].fault == "raised"
    (note,) = [note for note in outcome.facts.footnotes if name in note]
    assert f"{file}:{line}: AttributeError" in note


def shown() -> ImageBatch:
    images = torch.rand(SAMPLES, 3, 8, 8)
    tokens = torch.arange(SAMPLES * 2).view(SAMPLES, 2)
    return ImageBatch(images, images, tokens, torch.zeros(SAMPLES, 2), list(range(SAMPLES)), [5, 6, 7, 8])


@pytest.mark.parametrize(("name", "fault"), [
    ("raises", "raised"), ("exits", "raised"), ("nan", "not finite"), ("matrix", "wrong shape"), ("number", "wrong shape"),
    ("far", "out of its range"), ("grey", ""),
])  # fmt: skip
def test_values_that_are_none_have_a_kind_of_fault(
    name: str, fault: str, file: Path, measured: tuple[Outcome, dict[str, bytes]],
) -> None:
    definition = defined(name)
    case = replace(measured[0].case, evaluation={KEY: definition})
    plugin_metrics = PluginMetrics(case, [str(file)])
    samples, faults = plugin_metrics.images(shown(), SAMPLES, lambda images: None), plugin_metrics.faults
    (full,) = definition
    assert len(samples.get(full, ())) == (0 if fault else SAMPLES)
    assert {name: reason.fault for name, reason in faults.items()} == ({full: fault} if fault else {})


def test_an_edited_file_measures_nothing_under_the_old_name(measured: tuple[Outcome, dict[str, bytes]], tmp_path: Path) -> None:
    case, name = measured[0].case, full_name(measured[0], "grey")
    (tmp_path / "edited.py").write_text(METRICS + "\n")
    plugin_metrics = PluginMetrics(case, [str(tmp_path / "edited.py")])
    samples, faults = plugin_metrics.images(shown(), 2, lambda images: None), plugin_metrics.faults
    assert samples == {}
    assert faults[name].fault == "changed"
