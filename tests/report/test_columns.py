"""One spelling per unit and name, and one definition per column."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_sample as sample
from page import Page

from cachemark.analysis import columns
from cachemark.analysis.columns import Column
from cachemark.analysis.report_row import exactly
from cachemark.analysis.report_view import build
from cachemark.core import formatting as fmt
from cachemark.core.formatting import NAMES, display_name
from cachemark.decoders.registry import DECODERS
from cachemark.export.documents import html, latex, markdown
from cachemark.export.frames import csv, frame
from cachemark.export.tables import tables
from cachemark.methods.registry import METHODS
from cachemark.report.page.render import render


@pytest.mark.parametrize(("value", "name", "text"), [
    (0.84, "latency", "840 ms"), (0.00084, "latency", "0.84 ms"), (123.4, "latency", "123 s"), (512.0, "kv_logical", "512 B"),
    (1_048_576.0, "kv_logical", "1.00 MiB"), (963_000.0, "kv_logical", "940 KiB"), (1.7e-8, "kl", "1.7e−8 nat/token"),
    (0.0, "kl", "0.000 nat/token"), (-0.254, "ssim", "−0.254"), (-20.0, "psnr", "−20.0 dB"), (-0.032, "token_agreement", "−3.2 %"),
])
def test_a_figure_is_written_with_its_unit(value: float, name: str, text: str) -> None:
    """The other units are those of ``tests/test_metric_table.py``."""
    assert fmt.with_unit(value, name) == text


def test_a_foreign_name_cannot_turn_the_text_after_it() -> None:
    assert fmt.name("linear") == "linear"
    assert fmt.name("\u202eevil") == "\u2068\u202eevil\u2069"


def test_every_name_belongs_to_a_method_or_decoder() -> None:
    assert set(NAMES) <= {*METHODS, *DECODERS}
    assert {*METHODS, *DECODERS} - set(NAMES) <= {"full", "window", "random", "sequential"}


def test_only_whole_names_are_replaced() -> None:
    assert display_name("tiny-var linear 1/4 + sjd: wide 8") == "tiny-var LineAR 1/4 + SJD: wide 8"
    assert display_name("my-linear linear_2 1/4") == "my-linear linear_2 1/4"


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
