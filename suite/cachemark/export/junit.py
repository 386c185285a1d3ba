"""Comparisons as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

from ..analysis.baseline_comparison import BaselineComparison
from ..core.verdicts import CHANGED, JUDGED, REGRESSED
from ..core.wording import on_one_line
from ..gate.judgement import RunJudgement
from ..store.rows import Verdict

NAME, TEXT = 120, 1000  # characters of a name and of a message


def junit(result: RunJudgement, plan: str) -> str:
    """Return JUnit XML with one test case per case and compared metric.

    Regressions fail unless acknowledged; values that were not compared are skipped with the reason. Too little coverage is an error of the
    test case ``coverage``.
    """
    names = [(on_one_line(row.label, NAME), on_one_line(row.metric, NAME)) for row in result.all_rows]
    twice = {name for name, count in Counter(names).items() if count > 1}
    suite = ET.Element("testsuite", name=on_one_line(f"cachemark {plan}", NAME))
    fails = set(result.failing)
    for row, (class_name, name) in zip(result.all_rows, names, strict=True):
        whose = f"{class_name} {on_one_line(row.case_key, 16)}" if (class_name, name) in twice else class_name
        _add(suite, row, whose, name, result.decision_on(row), row in fails)
    coverage, comparison = ET.SubElement(suite, "testcase", classname="cachemark gate", name="coverage"), result.comparison
    if comparison is not None and comparison.exit_code == 4:
        compared, total = comparison.cases
        message = f"Only {compared} of {total} cases of the baseline were judged; {100 * comparison.min_coverage:g}% are needed."
        ET.SubElement(coverage, "error", message=message, type="coverage").text = message
    for tag, attribute in (("testcase", "tests"), ("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    suites = ET.Element("testsuites", {name: value for name, value in suite.items() if name != "skipped"})
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _add(suite: ET.Element, row: Verdict, class_name: str, name: str, decided: str, fails: bool) -> None:
    case = ET.SubElement(suite, "testcase", classname=class_name, name=name)
    then, now = BaselineComparison(row).texts
    values = f"{then} then, {now} now" if row.then is not None and row.now is not None else ""
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
