"""The studies behind the pages on statistics, in small; ``tests/slow`` runs them in full."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cachemark.analysis.report_row import FIDELITY, QUALITY
from cachemark.core.units import METRICS
from cachemark.stats.paired_test import PairRatios, Rule, judge, screen
from studies import claims_study, gate_study

Patch = pytest.MonkeyPatch
FOLDER = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize("name", ["gate_study", "claims_study"])
def test_a_study_stores_and_writes_its_tables_between_the_marks_of_a_page(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    script = gate_study if name == "gate_study" else claims_study
    marks = gate_study.gate_page if script is gate_study else claims_study
    target, stored = tmp_path / "page.md", tmp_path / "study.json"
    target.write_text(f"# Page\n{marks.BEGIN}\nfrom before\n{marks.END}\nThe end.\n")
    options = ["--json", str(stored), "--page", str(target)]
    if script is gate_study:
        monkeypatch.setitem(script.SIZES, "quick", script.Size(2, 40, 20, 2, 40, 1, 4))
        monkeypatch.setattr(script, "PROFILES", {"shared CPU": script.PROFILES["shared CPU"]})
        kept: list[str] = []
    else:
        monkeypatch.setitem(script.SIZES, "quick", 0.003)
        monkeypatch.setattr(script, "SEEDS", (16,))
        search = [{"seeds": 4, "level": 0.05, "distributions": 1, "highest rate": 0}]
        stored.write_text(json.dumps({table: [{"made": "elsewhere"}] for table in script.TABLES} | {"search": search}))
        some = ["false", "power", "means", "times", "faster", "others"]
        kept = [table for table in script.TABLES if table not in (*some, "search")]
        options += ["--only", *some]
    monkeypatch.setattr("sys.argv", [name, "--quick", *options])
    script.main()
    values, text = json.loads(stored.read_text()), target.read_text()
    for table in script.TABLES:
        assert (values[table] == [{"made": "elsewhere"}]) == (table in kept), table
    assert text.startswith("# Page\n")
    assert text.endswith("The end.\n")
    assert "from before" not in text
    for file in re.findall(r"\]\((gate-[a-z-]+\.svg)\)", text):
        assert "<svg" in (tmp_path / file).read_text()


def test_a_night_is_judged_as_the_gate_judges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study draws by stages; the same numbers given to ``judge`` as configurations give the same verdicts."""
    rule, effect = Rule(0.03, 40), np.repeat([0.0, 0.05, -0.05, 0.02], 10)
    drawn: list[np.ndarray] = []
    draw = gate_study.paired
    monkeypatch.setattr(gate_study, "paired", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    verdicts, used = gate_study.night(gate_study.PROFILES["unlocked"], np.random.default_rng(3), effect, rule)
    first, later, fresh = drawn
    seen = screen(first, rule)
    configs = {i: PairRatios(tuple(row)) for i, row in enumerate(first)}
    for i, row in zip(np.flatnonzero((seen.side == 0) & ~seen.equal), later, strict=True):
        configs[i] = PairRatios((*first[i], *row))
    shown = [i for i, config in configs.items() if screen([config.screening], rule).side[0]]
    for i, row in zip(shown, fresh, strict=True):
        configs[i] = replace(configs[i], fresh=tuple(row))
    judged = judge({str(i): config for i, config in configs.items()}, rule)
    assert verdicts == [judged[str(i)].verdict for i in configs]
    assert used.tolist() == [judged[str(i)].pairs for i in configs]
    assert set(verdicts) >= {"regressed", "improved", "equivalent"}


def test_the_stored_output_keeps_what_the_page_promises_for_every_range_of_a_value() -> None:
    stored = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))
    assert "### Power" in claims_study.text(stored)
    assert all(row["Gaffke (the report)"] <= 0.05 for row in stored["false"])
    assert all(row["highest rate"] <= 1.1 * row["level"] for row in stored["search"])
    for row in (*stored["means"], *stored["differences"]):
        if row["quantity"] not in claims_study.claims_coverage.UNSEEN:
            assert min(row[f"{n} seeds"] for n in (16, 32, 64)) >= 0.93, row["quantity"]
    assert all(row[f"process bias {bias} %"] >= row["stated"] for row in stored["times"] for bias in (0, 1, 2))
    coverage = claims_study.claims_coverage
    seen = {METRICS[population.metric].within for population in coverage.MEANS.values()}
    apart = {METRICS[population.metric].apart for population in coverage.DIFFERENCES.values()}
    assert {name for name in (*FIDELITY, *QUALITY) if METRICS[name].within not in seen} == set()
    assert {name for name in QUALITY if METRICS[name].apart not in apart} == set()
    for name, (_, draw, mean) in (*coverage.MEANS.items(), *coverage.DIFFERENCES.items()):
        values = draw(np.random.default_rng(1), (400, 500))
        assert values.mean() == pytest.approx(mean, abs=6 * values.std() / np.sqrt(values.size)), name
