"""A site over many runs: what it lists, what it removes, and that names are harmless in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report_sample as sample
from page import Page

from cachemark.analysis.report_view import build
from cachemark.report.page import site


def line(number: int, **changes: object) -> site.ListedRun:
    run = replace(sample.RUN, id=number, **changes)
    return site.listed(number, build(run, sample.mixed(), sample.comparison()))


def test_runs_are_listed_with_their_verdicts_and_pages() -> None:
    page = Page(site.index([line(9), line(8, state="interrupted")]))
    first, second = (row.text for row in page.all("tr")[1:])
    assert "demo 9" in " ".join(first.split())
    assert "Regressed" in first
    assert "interrupted" in second
    assert [e.attrs["href"] for e in page.all("a")] == ["runs/run-9.html", "runs/run-8.html"]
    assert page.all("script") == []
    assert "script-src 'none'" in page.find("meta", http_equiv="Content-Security-Policy").attrs["content"]
    assert "no baseline" in site.index([site.listed(1, build(sample.RUN, sample.outcomes()))])
    assert "No run is recent enough" in site.index([])


def test_only_pages_of_the_site_are_removed(tmp_path: Path) -> None:
    for name in ("run-1.html", "run-2.html", "mine.html"):
        (tmp_path / site.FOLDER).mkdir(exist_ok=True)
        (tmp_path / site.FOLDER / name).write_text("")
    assert site.prune(tmp_path, [2]) == 1
    assert sorted(p.name for p in (tmp_path / site.FOLDER).iterdir()) == ["mine.html", "run-2.html"]


@pytest.mark.parametrize("evil", [sample.SCRIPTS + sample.BREAKERS, "\u202eturned", "A" * 10_000, "😀 \ud800"], ids=lambda e: ascii(e[:8]))
def test_hostile_names_come_out_as_text(evil: str, tmp_path: Path) -> None:
    run, outcomes, comparison = sample.poison(evil)
    listed = site.listed(1, build(run, outcomes, comparison))
    text = site.publish(tmp_path, {"1": ("stamp", listed)}).read_text(encoding="utf-8")
    page = Page(text)
    assert {e.tag for e in page.elements} == {e.tag for e in Page(site.index([line(1)])).elements}
    assert not [name for e in page.elements for name in e.attrs if name.startswith("on")]
    assert len(text) < 60_000
