"""One definition of a column is enough for every table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_sample as sample
from page import Page

from cachemark.analysis import columns
from cachemark.analysis.columns import Column
from cachemark.analysis.report_row import exactly
from cachemark.analysis.report_view import build
from cachemark.export.documents import html, latex, markdown
from cachemark.export.frames import csv, frame
from cachemark.export.tables import tables
from cachemark.report.page.render import render

RATE = Column("bytes_per_token", "Bytes per token", "Allocated bytes / 256 tokens.",
              lambda row: exactly((row.median("kv_allocated") or 0) / 256), counted=True, unit="B", better="lower", write="{:.0f} B".format)


def test_a_new_column_appears_in_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MEMORY", replace(columns.MEMORY, columns=(*columns.MEMORY.columns, RATE)))
    outcomes = sample.outcomes()
    candidate = sample.candidate("linear", "1/4")
    value = candidate.samples["kv_allocated"][0] / 256
    view = build(sample.RUN, outcomes)

    page = Page(render(view))
    heading = page.find("th", data_k="bytes_per_token")
    assert (heading.text, heading.attrs["title"], heading.attrs["data-best"]) == (RATE.title, RATE.tip, "lower")
    cells = [cell for cell in page.all("td") if cell.attrs.get("data-k") == "bytes_per_token"]
    assert (f"{value:.0f} B", str(value)) in [(cell.text.strip(), cell.attrs["data-v"]) for cell in cells]

    documents = tables(view)
    for text, title in ((latex(documents), r"Bytes per token $\downarrow$"), (markdown(documents), "Bytes per token ↓"),
                        (html(documents), "Bytes per token")):
        assert title in text
        assert f"{value:.0f} B" in text

    table = frame(outcomes)
    (row,) = table[(table.label == "linear 1/4") & (table.metric == "bytes_per_token")].to_dict("records")
    assert (row["value"], row["unit"], row["better"], row["kind"]) == (value, "B", "lower", "derived")
    assert "bytes_per_token" in csv(table)
