"""Tables for documents with their margins and bold entries, and JUnit and comments, whose counts are the gate's."""

import os
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.columns import cells, column_groups
from cachemark.analysis.quality_claims import standing
from cachemark.analysis.report_view import build
from cachemark.core import formatting as fmt
from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome
from cachemark.export.documents import latex, markdown
from cachemark.export.github import COMMENT_CHARACTERS, SUMMARY_BYTES, comment, summary, workflow_commands
from cachemark.export.junit import junit
from cachemark.export.tables import Table, TableEntry, TableLine, tables
from cachemark.gate.comparison import PairOfOutcomes
from cachemark.gate.judgement import RunJudgement
from cachemark.gate.nights import Night
from cachemark.store.rows import Verdict
from report import report_sample as sample

GOLD = Path(__file__).parent / "gold"
REGOLD = "CACHEMARK_REGOLD"
LITTLE = (Verdict("a", "one", "kl", "equivalent"), Verdict("b", "two", "kl", "not_compared", "why"))
VIEW = build(sample.RUN, sample.mixed(), sample.comparison())
RULES = {  # of Jenkins' xUnit plug-in (junit-10.xsd): what an element may hold, its required attributes, and others that it may have
    "testsuites": ("testsuite", "", "name time tests failures errors"),
    "testsuite": ("testsuite properties testcase system-out system-err", "name tests failures errors",
                  "skipped time timestamp hostname id package group file log url"),
    "testcase": ("skipped error failure system-out system-err", "name", "classname time group"),
    "properties": ("property", "", ""), "property": ("", "name value", ""),
    **dict.fromkeys(("skipped", "error", "failure"), ("", "", "message type")), **dict.fromkeys(("system-out", "system-err"), ("", "", "")),
}


def table(outcomes: Sequence[Outcome]) -> Table:
    (exported,) = tables(build(sample.RUN, outcomes))
    return exported


def lines(of: Table) -> list[TableLine]:
    return [line for block in of.blocks for line in block]


def column(of: Table, key: str) -> dict[str, TableEntry]:
    number = [c.key for c in of.columns].index(key)
    return {f"{line.name} {line.budget.split()[0]}": line.entries[number] for line in lines(of) if line.entries}


def bold(of: Table, key: str) -> set[str]:
    return {name for name, entry in column(of, key).items() if entry.best}


@pytest.mark.parametrize(("write", "name"), [(markdown, "table.md"), (latex, "table.tex")])
def test_a_table_is_as_in_the_gold_file(write: Callable[[Sequence[Table]], str], name: str) -> None:
    text = write(tables(build(sample.RUN, sample.mixed()), ["speedup", "saving", "kl", "color_consistency"], ["linear", "random", "rkv"]))
    if os.environ.get(REGOLD):
        (GOLD / name).write_text(text, encoding="utf-8")
    hint = f"if the change is meant: {REGOLD}=1 pytest tests/export/{Path(__file__).name}, then read the diff of {name}"
    assert text == (GOLD / name).read_text(encoding="utf-8"), hint


def test_every_figure_is_the_text_of_the_page_and_a_margin_reaches_to_the_farther_end() -> None:
    ((part,), _) = standing(sample.mixed())
    columns = column_groups(part)
    for row, line in zip(part.rows, lines(table(sample.mixed())), strict=True):
        page = {cell.key: cell.text for cell in cells(row, columns) if not cell.empty}
        if not row.ok:
            assert (line.status, line.entries) == (page["status"], ())
            continue
        keys = [c.key for group in columns for c in group.columns]
        assert {key: entry.text for key, entry in zip(keys, line.entries, strict=True) if not entry.missing} == page
    (part,) = case_groups(sample.outcomes())
    row = next(r for r in part.candidates if r.case.label == "linear 1/4")
    exported, kl, speed, latency = table(sample.outcomes()), row.fidelity["kl"], row.speedup, sorted(row.outcome.samples["latency"])
    margins = {key: column(exported, key)["LineAR 1/4"].with_margin for key in ("kl", "speedup", "latency", "kv_logical")}
    assert margins == {"kl": f"{kl.value:.3f} ± {max(kl.high - kl.value, kl.value - kl.low):.3f}",
                       "speedup": f"{fmt.times(speed.value)} ({speed.low:.2f}–{speed.high:.2f})",
                       "latency": f"{latency[2]:.2f} s ({latency[0]:.2f}–{latency[-1]:.2f})", "kv_logical": "964 KiB"}
    assert column(exported, "speedup")["full 1"].with_margin == "1.00×"


def noise(name: str, size: float = 1.0) -> list[float]:
    stream = random.Random(name)
    return [size * stream.gauss(0, 1) for _ in range(sample.SEEDS)]


SPREAD = [20 + value for value in noise("seeds", 3)]  # what seeds do to every method alike


def psnr_of(*alternatives: list[float]) -> set[str]:
    """Which methods at a half are bold where ``linear`` has the values ``SPREAD`` and the others these."""
    named = zip(("linear", "random", "window"), (SPREAD, *alternatives), strict=False)
    candidates = [sample.measured(sample.candidate(method, "1/2"), psnr=values) for method, values in named]
    return bold(table([sample.full(), *candidates, sample.other_seeds()]), "psnr")


def test_bold_is_what_may_be_the_best() -> None:
    assert psnr_of([value - 0.1 for value in SPREAD]) == {"LineAR 1/2"}
    shaken = [value + noise for value, noise in zip(SPREAD, noise("own", 2), strict=True)]
    centred = [value - (sum(shaken) - sum(SPREAD)) / sample.SEEDS - 0.05 for value in shaken]
    assert psnr_of(centred) == {"LineAR 1/2", "random 1/2"}
    assert psnr_of([value - 5 for value in centred]) == {"LineAR 1/2"}

    def of(*latency: float) -> set[str]:
        candidates = [sample.measured(sample.candidate("linear", "1/2"), latency=[1.0, 1.02, 1.04]),
                      sample.measured(sample.candidate("random", "1/2"), latency=list(latency))]
        return bold(table([sample.measured(sample.full(), latency=[2.0, 2.0, 2.0]), *candidates]), "speedup")

    assert of(1.03, 1.06, 1.08) == {"LineAR 1/2", "random 1/2"}
    assert of(1.11, 1.12, 1.13) == {"LineAR 1/2", "random 1/2"}, "which two processes may differ by"
    assert of(1.18, 1.19, 1.20) == {"LineAR 1/2"}
    unlike = list(sample.other_seeds().samples["token_agreement"])
    worse = sample.measured(sample.candidate("linear", "1/4"), latency=[0.1] * 5, token_agreement=unlike)
    good = {"color_consistency": list(sample.full().samples["color_consistency"])}
    others = sample.candidate("random", "1/4"), sample.candidate("window", "1/4")
    results = [sample.full(), *(sample.measured(outcome, **good) for outcome in (worse, *others))]
    exported = table([*results, sample.other_seeds()])
    assert column(exported, "speedup")["LineAR 1/4"].text > column(exported, "speedup")["window 1/4"].text
    assert {"LineAR 1/4", "window 1/4"} & bold(exported, "speedup") == {"window 1/4"}
    assert "LineAR 1/4" in bold(table(results), "speedup")  # not distinguishable without the different-seed reference
    assert not [entry for line in exported.blocks[0] for entry in line.entries if entry.best]


def test_a_plain_table_has_paired_differences_and_a_name_that_is_none_is_refused() -> None:
    view = build(sample.RUN, sample.mixed())
    ((plain,), (noted,)) = (tables(view, ["color_consistency", "kl"], plain=plain) for plain in (True, False))
    assert [line for line in lines(plain) if line.name.startswith("full (")] == []
    scores = {o.case.label: np.mean(o.samples["color_consistency"]) for o in sample.mixed() if "color_consistency" in o.samples}
    entry, difference = column(plain, "color_consistency")["window 1/2"], scores["window 1/2"] - scores["full"]
    assert (entry.ends, entry.margin) == (f"−{100 * abs(difference):.1f} pt", "")
    assert entry.text == column(noted, "color_consistency")["window 1/2"].text
    assert (plain.notes, plain.reasons, plain.comments[-1]) == ((), (), noted.notes[-1])
    assert {entry.ends for entry in column(plain, "kl").values()} == {""}, "a distance from the full cache has no difference from it"
    assert "Brackets:" not in latex(tables(view, ["kl"], plain=True))
    text = latex([plain])
    assert "Brackets:" in text
    assert f"($-${100 * abs(difference):.1f} pt)" in text
    assert "in points (pt). 64 seeds, batch 16, median of 5 timed repeats, Example CPU, 8 threads.}" in text
    assert "± " not in text.split("% ±")[0].partition("\\bottomrule")[0]
    assert all(line.startswith("%") for line in text.partition("\\end{tabular}")[2].splitlines() if line and line != "\\end{table}")
    for columns, methods, said in ((["psrn"], [], "Unknown column 'psrn'. Did you mean 'psnr'"),
                                   ([], ["linaer"], "Unknown method 'linaer'. Did you mean 'linear'")):
        with pytest.raises(UnknownName, match=re.escape(said)):
            tables(build(sample.RUN, sample.mixed()), columns, methods)


def suite(comparison: RunJudgement) -> ET.Element:
    complete = ET.fromstring(junit(comparison, "demo").encode())
    assert complete.tag == "testsuites"
    (result,) = complete
    for name in ("tests", "failures", "errors"):
        assert complete.get(name) == result.get(name)
    return result


def ends(of: ET.Element) -> dict[tuple[str | None, str | None], list[str]]:
    """Tags by label and metric; the class name is the label, followed by the key of the case."""
    return {(str(case.get("classname")).rpartition(" ")[0], case.get("name")): [child.tag for child in case] for case in of}


def test_every_row_is_a_test_case_that_ended_as_the_gate_says() -> None:
    element = suite(sample.comparison())
    assert ends(element) == {("window 1/4", "latency"): [], ("linear 1/4", "latency"): ["failure"], ("streaming 1/2", "kv_allocated"): [],
                             ("random 1/4", "output_hash"): ["system-out"], ("random 1/4", "color_consistency"): ["skipped"],
                             ("rkv 1/4", "status"): ["failure"], ("cachemark", "verdict"): ["failure"]}
    assert [element.get(name) for name in ("name", "tests", "failures", "errors", "skipped")] == ["cachemark demo", "7", "3", "0", "1"]
    rows = [Verdict("a", "one", metric, verdict, "why") for metric, verdict in (("m", "missing"), ("n", "new"), ("i", "inconclusive"))]
    tags = ends(suite(sample.compared(*rows, Verdict("a", "one", "kl", "equivalent"))))
    assert [tags["one", name] for name in ("m", "n", "i", "kl")] == [*[["skipped"]] * 3, []]
    element = suite(sample.compared(*LITTLE))
    assert (ends(element)["cachemark", "verdict"], element.get("errors")) == (["error"], "1")
    assert ends(suite(sample.compared(*LITTLE, min_coverage=0.5)))["cachemark", "verdict"] == []


def broken_rules(text: str) -> list[str]:
    root = ET.fromstring(text.encode())
    found = [root.tag] * (root.tag != "testsuites")
    for element in root.iter():
        inside, required, optional = (set(words.split()) for words in RULES[element.tag])
        kept = required <= element.attrib.keys() <= required | optional and {child.tag for child in element} <= inside
        timed = element.tag == "testcase" or re.fullmatch(r"[\d,]*(\.\d*)?", element.get("time", ""))
        found += [element.tag] * (not kept or not timed)
    return found


def test_the_file_is_of_the_usual_schema() -> None:
    hostile = (sample.poison(text)[2] for text in (sample.SCRIPTS, sample.BREAKERS))
    for comparison in (sample.comparison(), sample.compared(*LITTLE), *hostile):
        assert not broken_rules(junit(comparison, "demo", "2026-11-26T14:08:16+00:00", "2026-11-26T14:10:16+00:00", {"a1": 2.5}))
    for wrong in ('<testsuites skipped="1"/>', '<testsuites><testcase name="x"/></testsuites>',
                  '<testsuites><testsuite name="x" tests="1" failures="0"/></testsuites>'):
        assert broken_rules(wrong)


def test_annotations_are_commands_with_their_figures_and_seconds_of_pairs_no_ratios() -> None:
    assert workflow_commands(sample.comparison()) == [
        "::error title=cachemark linear 1/4::latency regressed: 0.893 × full → 1.041 × full (× 1.166)",
        "::error title=cachemark rkv 1/4::status regressed: ok then, oom now",
        "::notice title=cachemark random 1/4::output_hash changed: 1f0c then, 77ab now"]
    pair = PairOfOutcomes("linear 1/4", sample.candidate("linear", "1/4"), sample.candidate("linear", "1/4"))
    run = replace(sample.RUN, plan_json={"configurations": 1, "alike": "same"})
    night = Night(run, (pair.row("latency", "regressed", "+12 %", 0.119, 0.133, 1.12),
                        pair.row("kl", "changed", "less than is printed", 0.1190, 0.1191, 1.001)))
    judgement = RunJudgement(night=night)
    lines = workflow_commands(judgement)
    assert lines[0] == "::error title=cachemark linear 1/4::latency regressed: 119 ms → 133 ms (× 1.120) +12 %25"
    assert lines[1].endswith("kl changed: 0.119 nat/token (× 1.001) less than is printed"), "not 0.119 → 0.119"
    assert suite(judgement).find(".//failure").get("message") == "regressed: 119 ms → 133 ms. +12 %"  # type: ignore[union-attr]


def test_a_summary_has_the_verdict_what_changed_and_the_tables() -> None:
    text = summary(VIEW, sample.comparison())
    (table,) = tables(VIEW)
    assert text.startswith("## cachemark demo\n\n**linear 1/4 became worse: latency × 1.17. 1 other value became worse too. Owner: nobody ")
    assert "**\n\n- Regressed: 2 regressed, " in text
    assert "\n- **tiny-llamagen**: Keep the full cache." in text
    assert "| linear 1/4 | latency | regressed | 0.893 × full | 1.041 × full | 1.166 |  |" in text
    assert text.index("| linear 1/4 | latency") < text.index("output\\_hash")
    assert "| window 1/4 | latency" not in text  # as it was
    assert markdown([table]) in text


def test_commands_are_whole_whatever_their_length_and_texts_fit() -> None:
    run = replace(sample.RUN, plan="compare/demo", plan_json={
        "sides": ["HEAD~1", "HEAD"], "options": ["--commits", "a", "b", "--plugin", f"/{'deep/' * 80}method.py", "--device", "cuda"],
        "configurations": 1, "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]})
    judgement = RunJudgement(night=Night(run, (Verdict("k", "linear 1/4", "latency", "inconclusive"),)), store="n.sqlite")
    assert judgement.exit_code == 3
    assert judgement.in_words.startswith("linear 1/4 is undecided: latency (too few pairs). Nothing is known to be worse.")
    slower = Verdict("m", "rkv 1/4", "latency", "inconclusive", "1 of the 6 pairs that are needed", 2.0, 4.0, 2.0)
    two = RunJudgement(night=Night(run, (Verdict("k", "linear 1/4", "latency", "inconclusive"), slower)))
    assert two.in_words.startswith("rkv 1/4 is undecided: latency × 2.00 so far (1 of the 6 pairs that are needed). 1 other case")
    assert "method.py --device cuda --store n.sqlite\n" in comment(VIEW, judgement)
    piles = "\N{PILE OF POO}" * 500
    long = sample.compared(*(Verdict(str(n), piles, piles, "regressed", piles) for n in range(200)))
    assert len(comment(VIEW, long).encode()) <= COMMENT_CHARACTERS
    assert len(summary(VIEW, long).encode()) <= SUMMARY_BYTES
    assert ["does not fit here" in comment(VIEW, each) for each in (long, sample.comparison())] == [True, False]
