"""Comparisons as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping

from ..analysis.baseline_comparison import BaselineComparison
from ..core.formatting import duration
from ..core.verdicts import CHANGED, ENDED, JUDGED, REGRESSED
from ..core.wording import on_one_line
from ..gate.incidents import PAIRS
from ..gate.judgement import RunJudgement
from ..store.rows import Verdict

NAME, TEXT = 120, 1000  # characters of a name and of a message


def junit(
    result: RunJudgement, plan: str, started: str = "", finished: str | None = None, seconds: Mapping[str, float] | None = None,
) -> str:
    """Return JUnit XML with one test case per case and compared metric.

    ``started`` and ``finished``: when the run started and ended, ISO 8601. ``seconds``: durations by key of a case, which its first test
    case has, because readers add the times of test cases.

    Regressions fail unless acknowledged; values that were not compared are skipped with the reason. The test case ``verdict`` fails if the
    run regressed, and has an error if the check is inconclusive or covers too little.
    """
    suite = ET.Element("testsuite", name=on_one_line(f"cachemark {plan}", NAME))
    if started:
        suite.set("timestamp", started[:19])
    if (total := duration(started, finished)) is not None:
        suite.set("time", f"{max(0.0, total):.3f}")
    fails, left = set(result.failing), dict(seconds or {})
    for judge, (rows, _) in result.by_judge.items():
        for row in rows:
            parts = on_one_line(row.label, NAME), on_one_line(row.case_key, 16), "in pairs" if judge == PAIRS else ""
            class_name = " ".join(filter(None, parts))
            case = _add(suite, row, class_name, result.decision_on(row), row in fails, BaselineComparison(row).movement)
            if seconds is not None:
                case.set("time", f"{left.pop(row.case_key, 0.0):.3f}")
    verdict = ET.SubElement(suite, "testcase", classname="cachemark gate", name="verdict")
    if result.exit_code:
        message = on_one_line(" ".join(result.summary()[: 3 if result.sees else 2]), TEXT)
        tag = "failure" if result.exit_code == 1 else "error"
        ET.SubElement(verdict, tag, message=message, type=ENDED[result.exit_code]).text = message
    for tag, attribute in (("testcase", "tests"), ("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    suites = ET.Element("testsuites", {name: value for name, value in suite.items() if name not in ("skipped", "timestamp")})
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _add(suite: ET.Element, row: Verdict, class_name: str, decided: str, fails: bool, values: str) -> ET.Element:
    """Return the new test case of a row."""
    case = ET.SubElement(suite, "testcase", classname=class_name, name=on_one_line(row.metric, NAME))
    outcome = f"{row.verdict.replace('_', ' ')}: {'. '.join(filter(None, (values, row.reason)))}".rstrip(": ")
    message = on_one_line(f"{decided}: {outcome}" if decided else outcome, TEXT)
    if fails and decided:
        ET.SubElement(case, "skipped", message=message)
    elif fails:
        ET.SubElement(case, "failure", message=message, type=REGRESSED).text = message
    elif row.verdict not in JUDGED:
        ET.SubElement(case, "skipped", message=message)
    elif row.verdict == CHANGED:
        ET.SubElement(case, "system-out").text = message
    return case
