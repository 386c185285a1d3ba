"""JUnit: the counts of a dashboard equal the gate's results."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

from cachemark.analysis.report_view import build
from cachemark.export.documents import markdown
from cachemark.export.github import COMMENT_CHARACTERS, SUMMARY_BYTES, comment, summary, workflow_commands
from cachemark.export.junit import junit
from cachemark.export.tables import tables
from cachemark.gate.comparison import PairOfOutcomes
from cachemark.gate.judgement import RunJudgement
from cachemark.gate.nights import Night
from cachemark.store.rows import Verdict
from report import report_sample as sample

LITTLE = (Verdict("a", "one", "kl", "equivalent"), Verdict("b", "two", "kl", "not_compared", "why"))


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
    assert ends(element) == {
        ("window 1/4", "latency"): [], ("linear 1/4", "latency"): ["failure"], ("streaming 1/2", "kv_allocated"): [],
        ("random 1/4", "output_hash"): ["system-out"], ("random 1/4", "color_consistency"): ["skipped"], ("rkv 1/4", "status"): ["failure"],
        ("cachemark", "verdict"): ["failure"],
    }  # fmt: skip
    assert [element.get(name) for name in ("name", "tests", "failures", "errors", "skipped")] == ["cachemark demo", "7", "3", "0", "1"]
    rows = [Verdict("a", "one", metric, verdict, "why") for metric, verdict in (("m", "missing"), ("n", "new"), ("i", "inconclusive"))]
    tags = ends(suite(sample.compared(*rows, Verdict("a", "one", "kl", "equivalent"))))
    assert [tags["one", name] for name in ("m", "n", "i", "kl")] == [*[["skipped"]] * 3, []]
    element = suite(sample.compared(*LITTLE))
    assert (ends(element)["cachemark", "verdict"], element.get("errors")) == (["error"], "1")
    assert ends(suite(sample.compared(*LITTLE, min_coverage=0.5)))["cachemark", "verdict"] == []


RULES = {  # of Jenkins' xUnit plug-in (junit-10.xsd): what an element may hold, its required attributes, and others that it may have
    "testsuites": ("testsuite", "", "name time tests failures errors"),
    "testsuite": ("testsuite properties testcase system-out system-err", "name tests failures errors",
                  "skipped time timestamp hostname id package group file log url"),
    "testcase": ("skipped error failure system-out system-err", "name", "classname time group"),
    "properties": ("property", "", ""), "property": ("", "name value", ""),
    **dict.fromkeys(("skipped", "error", "failure"), ("", "", "message type")), **dict.fromkeys(("system-out", "system-err"), ("", "", "")),
}


def broken_rules(text: str) -> list[str]:
    """Tags of elements that break a rule of the schema."""
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


VIEW = build(sample.RUN, sample.mixed(), sample.comparison())


def test_annotations_are_commands_with_their_figures() -> None:
    assert workflow_commands(sample.comparison()) == [
        "::error title=cachemark linear 1/4::latency regressed: 0.893 × full → 1.041 × full (× 1.166)",
        "::error title=cachemark rkv 1/4::status regressed: ok then, oom now",
        "::notice title=cachemark random 1/4::output_hash changed: 1f0c then, 77ab now",
    ]


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


def test_seconds_of_pairs_are_no_ratios_to_the_full_cache() -> None:
    pair = PairOfOutcomes("linear 1/4", sample.candidate("linear", "1/4"), sample.candidate("linear", "1/4"))
    run = replace(sample.RUN, plan_json={"configurations": 1, "alike": "same"})
    night = Night(run, (pair.row("latency", "regressed", "+12 %", 0.119, 0.133, 1.12),
                        pair.row("kl", "changed", "less than is printed", 0.1190, 0.1191, 1.001)))
    judgement = RunJudgement(night=night)
    lines = workflow_commands(judgement)
    assert lines[0] == "::error title=cachemark linear 1/4::latency regressed: 119 ms → 133 ms (× 1.120) +12 %25"
    assert lines[1].endswith("kl changed: 0.119 nat/token (× 1.001) less than is printed"), "not 0.119 → 0.119"
    assert suite(judgement).find(".//failure").get("message") == "regressed: 119 ms → 133 ms. +12 %"  # type: ignore[union-attr]


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
    result = comment(VIEW, long)
    assert len(result.encode()) <= COMMENT_CHARACTERS
    assert "does not fit here" in result
    assert len(summary(VIEW, long).encode()) <= SUMMARY_BYTES
    assert "does not fit here" not in comment(VIEW, sample.comparison())
