"""GitHub: annotations are commands that nobody else can write, and texts fit."""

from __future__ import annotations

import re

import report_sample as sample

from cachemark.analysis.report_view import build
from cachemark.export.documents import markdown
from cachemark.export.github import ANNOTATIONS, COMMENT_CHARACTERS, SHOWN, SUMMARY_BYTES, comment, summary, workflow_commands
from cachemark.export.tables import tables
from cachemark.gate.baseline_check import Comparison
from cachemark.store.rows import Verdict

VIEW = build(sample.RUN, sample.mixed(), sample.comparison())


def many(count: int, verdict: str = "regressed", label: str = "linear 1/4") -> Comparison:
    return sample.compared(*(Verdict(f"k{number}", f"{label} {number}", "latency", verdict, "", 1.0, 2.0, 2.0) for number in range(count)))


def test_annotations_are_commands_with_their_figures() -> None:
    assert workflow_commands(sample.comparison()) == [
        "::error title=cachemark linear 1/4::latency regressed: 0.893 × full → 1.041 × full (× 1.166)",
        "::error title=cachemark rkv 1/4::status regressed: ok then, oom now",
        "::notice title=cachemark random 1/4::output_hash changed: 1f0c then, 77ab now",
    ]


def test_signs_of_commands_are_escaped() -> None:
    row = Verdict("k", "a:b,c::d%0A\n::error::x", "latency", "regressed", "50%\nand\rmore")
    (line,) = workflow_commands(sample.compared(row))
    assert line == "::error title=cachemark a%3Ab%2Cc%3A%3Ad%250A %3A%3Aerror%3A%3Ax::latency regressed: 50%25 and more"


def test_there_are_ten_of_a_kind_and_the_last_counts_the_rest() -> None:
    assert len(workflow_commands(many(ANNOTATIONS))) == ANNOTATIONS
    lines = workflow_commands(many(25))
    assert len(lines) == ANNOTATIONS
    assert lines[-1] == "::error title=cachemark::16 more regressed; see the summary of the step"
    assert not [line for line in workflow_commands(many(ANNOTATIONS)) if "more" in line]


def test_a_summary_has_the_verdict_what_changed_and_the_tables() -> None:
    text = summary(VIEW, sample.comparison())
    (table,) = tables(VIEW)
    assert text.startswith("## cachemark demo\n\n- **tiny-llamagen**: Keep the full cache.")
    assert "\n- Regressed: 2 regressed, " in text
    assert "| linear 1/4 | latency | regressed | 0.893 × full | 1.041 × full | 1.166 |  |" in text
    assert text.index("| linear 1/4 | latency") < text.index("output\\_hash")
    assert "| window 1/4 | latency" not in text  # as it was
    assert markdown([table]) in text


def test_bytes_have_a_unit() -> None:
    result = sample.compared(Verdict("a", "linear 1/4", "peak_memory", "regressed", "", 2_097_152.0, 4_194_304.0, 2.0))
    assert workflow_commands(result) == ["::error title=cachemark linear 1/4::peak_memory regressed: 2.00 MiB → 4.00 MiB (× 2.000)"]
    assert "| linear 1/4 | peak\\_memory | regressed | 2.00 MiB | 4.00 MiB | 2.000 |  |" in summary(VIEW, result)


def test_without_a_baseline_it_says_so() -> None:
    assert "Not compared with a baseline." in summary(VIEW)
    assert "Not compared with a baseline." not in summary(VIEW, sample.comparison())


def test_the_mark_of_a_comment_depends_on_the_plan_alone() -> None:
    first, second = (comment(VIEW, result).splitlines()[0] for result in (sample.comparison(), None))
    assert first == second == "<!-- cachemark demo -->"


def test_a_table_of_changes_is_cut_with_a_word() -> None:
    text = summary(VIEW, many(SHOWN + 7))
    assert len(re.findall(r"^\| linear 1/4 \d+ \|", text, re.M)) == SHOWN
    assert "and 7 more." in text
    assert "and 7 more." not in summary(VIEW, many(SHOWN))


def test_texts_fit_whatever_is_in_them() -> None:
    piles = "\N{PILE OF POO}" * 500
    long = sample.compared(*(Verdict(str(n), piles, piles, "regressed", piles) for n in range(200)))
    result = comment(VIEW, long)
    assert len(result.encode()) <= COMMENT_CHARACTERS
    assert "does not fit here" in result
    assert len(summary(VIEW, long).encode()) <= SUMMARY_BYTES
    assert "does not fit here" not in comment(VIEW, sample.comparison())
