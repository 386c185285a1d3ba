"""JUnit: what a dashboard counts is what the gate found."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import report_sample as sample

from cachemark.export.junit import junit
from cachemark.gate.baseline_check import Comparison
from cachemark.store.rows import Verdict


def suite(comparison: Comparison) -> ET.Element:
    complete = ET.fromstring(junit(comparison, "demo").encode())
    assert complete.tag == "testsuites"
    (result,) = complete
    for name in ("tests", "failures", "errors"):
        assert complete.get(name) == result.get(name)
    return result


def ends(of: ET.Element) -> dict[tuple[str | None, str | None], list[str]]:
    return {(case.get("classname"), case.get("name")): [child.tag for child in case] for case in of}


def test_every_row_is_a_test_case_that_ended_as_the_gate_says() -> None:
    element = suite(sample.comparison())
    assert ends(element) == {
        ("window 1/4", "latency"): [], ("linear 1/4", "latency"): ["failure"], ("streaming 1/2", "kv_allocated"): [],
        ("random 1/4", "output_hash"): ["system-out"], ("random 1/4", "color_consistency"): ["skipped"], ("rkv 1/4", "status"): ["failure"],
        ("cachemark gate", "coverage"): [],
    }  # fmt: skip
    assert [element.get(name) for name in ("name", "tests", "failures", "errors", "skipped")] == ["cachemark demo", "7", "2", "0", "1"]


def test_a_failure_says_the_figures_and_a_skip_its_reason() -> None:
    element = suite(sample.comparison())
    failure, skipped = element.find(".//failure"), element.find(".//skipped")
    assert failure is not None
    assert skipped is not None
    assert failure.get("message") == failure.text == "regressed: 0.893 × full then, 1.041 × full now"
    assert skipped.get("message") == "not compared: quality varies from sample to sample and needs a paired test"


def test_what_is_missing_new_or_not_yet_known_is_skipped_and_not_passed() -> None:
    rows = [Verdict("a", "one", metric, verdict, "why") for metric, verdict in (("m", "missing"), ("n", "new"), ("i", "inconclusive"))]
    element = ends(suite(Comparison((*rows, Verdict("a", "one", "kl", "equivalent")), 0.15, 0.95)))
    assert [element["one", name] for name in "mni"] == [["skipped"]] * 3
    assert element["one", "kl"] == []


def test_too_little_judged_is_an_error() -> None:
    little = Comparison((Verdict("a", "one", "kl", "equivalent"), Verdict("b", "two", "kl", "not_compared", "why")), 0.15, 0.95)
    element = suite(little)
    assert ends(element)["cachemark gate", "coverage"] == ["error"]
    assert element.get("errors") == "1"
    assert "Only 1 of 2 cases" in ET.tostring(element, encoding="unicode")
    assert ends(suite(replace(little, min_coverage=0.5)))["cachemark gate", "coverage"] == []


def test_cases_with_one_label_are_told_apart() -> None:
    rows = (Verdict("a1", "full", "latency", "equivalent"), Verdict("b2", "full", "latency", "regressed"))
    comparison = Comparison(rows, 0.15, 0.95)
    assert [name for name, _ in ends(suite(comparison))][:2] == ["full a1", "full b2"]


SCHEMA = Path(__file__).parent / "data" / "junit.xsd"


def test_the_file_is_of_the_usual_schema() -> None:
    xmlschema = pytest.importorskip("xmlschema", reason="no xmlschema here; `pip install xmlschema` gives one")
    schema = xmlschema.XMLSchema(SCHEMA)
    little = Comparison((Verdict("a", "one", "kl", "equivalent"), Verdict("b", "two", "kl", "not_compared", "why")), 0.15, 0.95)
    for comparison in (sample.comparison(), little, *(sample.poison(evil)[2] for evil in (sample.SCRIPTS, sample.BREAKERS))):
        schema.validate(junit(comparison, "demo"))
    for wrong in ('<testsuites skipped="1"/>', '<testsuites><testcase name="x"/></testsuites>',
                  '<testsuites><testsuite name="x" tests="1" failures="0"/></testsuites>'):
        with pytest.raises(xmlschema.XMLSchemaValidationError):
            schema.validate(wrong)
