"""The metrics of each kind in the guide, each one file of a plug-in, appear wherever a built-in metric would."""

import io
import math
import re
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cachemark
from cachemark.analysis.columns import column_groups, columns_of
from cachemark.analysis.report_view import ReportView, build
from cachemark.core.result import Environment, Outcome
from cachemark.core.units import FAMILIES, METRICS, metric
from cachemark.core.verdicts import NOT_COMPARED, REGRESSED
from cachemark.export.asv import cost_of
from cachemark.export.documents import latex
from cachemark.export.frames import case_frame, frame, samples_frame
from cachemark.export.tables import tables
from cachemark.gate.baseline_check import compare
from cachemark.metrics.compute import presets
from cachemark.plans.reuse import Earlier
from cachemark.report.page.render import render
from cachemark.store.db import Store
from cachemark.store.exchange import dump, load
from cachemark.trial.child import quality
from support import examples
from support.stages import call

IMAGES = 24
GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "add-a-metric.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.DOTALL))
FILES["contrast"] = FILES["contrast"].replace("within =", "deterministic = True\n    within =")  # so that a gate compares it exactly
SEES = '''
from cachemark.metrics.compute import presets


def set_up():
    presets.preset = lambda name, **_: seen()
    presets.identity_of = lambda name, *_: seen().identity
'''
BASES = tuple(FILES)
ENVIRONMENT = Environment("Xeon", "ci-cpu", "torch 2.6 / 4 threads", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A plan with a quality pass that has been run with the three files."""
    folder = tmp_path_factory.mktemp("one_file")
    for name, text in {"dot": examples.MODEL + examples.EYES + SEES, **FILES}.items():
        (folder / f"{name}.py").write_text(text)
    examples.weights(folder / "dot.safetensors")
    table = f'[quality]\nseeds = "s256"\nsamples = {IMAGES}\nbatch = 8\npreset = "eyes"\n\n'
    text = examples.plan_text('"streaming"', weights=folder / "dot.safetensors").replace("[[cells]]", f"{table}[[cells]]", 1)
    (folder / "plan.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((quality, "PART"), (presets, "preset"), (presets, "identity_of")):
            patch.setattr(module, name, getattr(module, name))
        plugins = [part for name in ("dot", *FILES) for part in ("--plugin", folder / f"{name}.py")]
        result = call("run", folder / "plan.toml", *plugins, "--store", folder / "s.sqlite", "--report", folder / "r.html", "--threads", 1)
        assert result.exit_code == 0, result.output
        yield folder


@pytest.fixture(scope="module")
def view(folder: Path) -> ReportView:
    with Store.open(folder / "s.sqlite", create=False, read_only=True) as store:
        run = store.run()
        return build(run, store.outcomes(run.id))


@pytest.fixture(scope="module")
def outcomes(view: ReportView) -> list[Outcome]:
    return [row.outcome for chapter in view.chapters for row in chapter.group.rows]


@pytest.fixture(scope="module")
def candidate(outcomes: list[Outcome]) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.case.method == "streaming")


def full_name(outcome: Outcome, base: str) -> str:
    (name,) = (name for name in outcome.case.plugin_metrics if name.startswith(f"{base}_") and len(name) == len(base) + 13)
    return name


@pytest.mark.parametrize("base", BASES)
def test_the_case_states_it_and_the_trial_measures_it(base: str, candidate: Outcome) -> None:
    name = full_name(candidate, base)
    assert len(candidate.samples[name]) == (examples.SAMPLES if base == "contrast" else 1)
    assert candidate.facts.metric_faults is None
    if base == "token_bytes":
        slots = candidate.samples["kv_allocated"][0] - candidate.samples["kv_workspace"][0]
        assert candidate.samples[name] == [slots / examples.TOKENS]
    if base == "gap":
        assert candidate.case.metrics[name]["set"] == f"eyes_{IMAGES}"
        assert metric(name).title == f"Gap, eyes, {IMAGES} images"


@pytest.mark.parametrize(("base", "verdict"), [("contrast", REGRESSED), ("gap", NOT_COMPARED), ("token_bytes", REGRESSED)])
def test_the_gate_judges_what_is_exact(base: str, verdict: str, outcomes: list[Outcome], candidate: Outcome) -> None:
    name, worse = full_name(candidate, base), {"lower": 1.5, "higher": 0.5}
    then = [outcome for outcome in outcomes if outcome.case.role in ("candidate", "baseline")]
    positive, changed = ([replace(o, samples={**o.samples, name: [value for _ in o.samples[name]]}) for o in then]
                         for value in (0.5, 0.5 * worse[metric(name).better]))
    now = [new if new.case.key == candidate.case.key else old for old, new in zip(positive, changed, strict=True)]
    baseline = load(dump(positive, ENVIRONMENT, {"commit": "abc"}), "baseline.json")
    (row,) = (row for row in compare(baseline, now, ENVIRONMENT).rows if row.metric == name and row.case_key == candidate.case.key)
    assert row.verdict == verdict


def test_a_quality_pass_without_a_value_of_it_is_made_again(candidate: Outcome) -> None:
    name = full_name(candidate, "gap")
    lacking = replace(candidate, samples={other: values for other, values in candidate.samples.items() if other != name})
    earlier = Earlier.from_outcome(candidate, candidate.facts.result_parts)
    assert earlier.quality[name] == candidate.samples[name]
    assert Earlier.from_outcome(lacking, candidate.facts.result_parts) is None


@pytest.mark.parametrize("base", BASES)
def test_the_report_its_tables_frames_and_histories_have_it(base: str, view: ReportView, candidate: Outcome, folder: Path) -> None:
    name, store = full_name(candidate, base), folder / "s.sqlite"
    known, title = metric(name), metric(name).title.split(",")[0]
    (chapter,) = view.chapters
    (column,) = (column for column in columns_of(column_groups(chapter.group)) if column.key == name)
    assert column.value(next(row for row in chapter.group.candidates if row.outcome.case.key == candidate.case.key)) is not None
    (table,) = tables(view, [base, "kl"])
    assert [column.key for column in table.columns if column.key != "kl"] == [name], "chosen without its digest"
    assert title in latex([table])
    assert title in render(view)
    assert known.meaning in (folder / "r.html").read_text(encoding="utf-8")
    rows = frame(store)
    (row,) = rows[(rows["metric"] == name) & (rows["case"] == candidate.case.key)].to_dict("records")
    assert (row["unit"], row["better"], row["kind"]) == (known.unit, known.better, known.kind)
    assert name in case_frame(store).columns
    assert (samples_frame(store)["metric"] == name).any()
    assert math.isfinite(cost_of(known).value(0.5))


# -- no file outside ``metrics`` names a metric: everything about it is an attribute of its class --
PACKAGE = Path(cachemark.__file__).parent
COSTS = "fields of Costs, and facts"
ALLOWED = {
    "core/units.py": "the one list of metrics from which speedups, savings, ranks and charts are derived",
    "core/spec.py": "the key under which a case asks for its largest batch", "models/prompt_lists.py": "kinds of lists of prompts",
    "models/catalogue/family.py": "a model names the metrics that are made for it",
    "plans/expand.py": "kid_subset_size, an option of torch-fidelity", "trial/child/measure.py": COSTS, "trial/child/timing.py": COSTS,
    "store/benchmark_files.py": "a measure of Bencher, no metric", "cli/advise.py": "passes of a decoder, no metric",
    "cli/generate.py": "what one generation took, no metric", "workflows/generated.py": "an attribute asked for by another name",
    "workflows/score_protocols.py": "FID of a benchmark's own images",
}  # fmt: skip


def naming(path: Path) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    texts = [token.string.strip("\"'") for token in tokens if token.type == tokenize.STRING]
    return any(text in METRICS or text in FAMILIES or text.startswith(tuple(f"{family}_" for family in FAMILIES)) for text in texts)


def test_metrics_are_named_where_they_are_declared() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert {name for name, path in files.items() if not name.startswith("metrics/") and naming(path)} == ALLOWED.keys()
