"""One spelling per unit and name, and one definition per column."""

import json
from dataclasses import make_dataclass, replace
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis import columns
from cachemark.analysis.public import scrubbed
from cachemark.analysis.report_view import build
from cachemark.core import formatting as fmt
from cachemark.core.facts import Facts, LiveBytes, PluginSource, Reused
from cachemark.core.stored_table import BadField, stored
from cachemark.decoders.registry import DECODERS
from cachemark.export.frames import frame
from cachemark.methods.registry import METHODS
from cachemark.report.page.render import render
from tools.cards.methods import TITLES as TITLES_FILE, titles_text

STORED: dict[str, Any] = {
    "kernel": "sdpa", "footnotes": [], "live_bytes": {"tokens": [1], "live": [8.5], "later": 1}, "full_beside": [1, 2.5],
    "slope": {"slope": 1e-9, "intercept": 0.1, "r2": 1, "bytes_per_s": None, "lines": 3}, "intervals": {"fid": [None, 2.0]},
    "reused": {"metrics": ["fid"], "from": "cafe"}, "limit": {"least": 1.0}, "of_a_later_version": {"a": [1]}}


def test_a_figure_has_its_unit_and_titles_are_those_of_the_classes_of_plug_ins_too() -> None:
    """The other units are those of ``tests/test_metric_table.py``."""
    for value, name, text in (
        (0.84, "latency", "840 ms"), (0.00084, "latency", "0.84 ms"), (123.4, "latency", "123 s"), (963_000.0, "kv_logical", "940 KiB"),
        (1.7e-8, "kl", "1.7e−8 nat/token"), (-0.254, "ssim", "−0.254"), (-0.032, "token_agreement", "−3.2 %")):
        assert fmt.with_unit(value, name) == text
    assert titles_text() == TITLES_FILE.read_text(encoding="utf-8"), "write them again: python -m tools.cards docs"
    assert {*METHODS, *DECODERS} - set(fmt.TITLES) == {"full", "window", "random", "sequential"}
    plugin = PluginSource("mine.py", "0123456789ab", "<b>Mine</b>")
    outcomes = [replace(o, facts=replace(o.facts, plugin=plugin)) if o.case.method == "rkv" else o for o in sample.outcomes()]
    page = render(build(sample.RUN, outcomes))
    assert "&lt;b&gt;Mine&lt;/b&gt; 1/2" in page
    assert not [text for text in ("R-KV 1/2", "<bdi>R-KV") if text in page]
    assert "title" not in vars(type("Derived", (METHODS.get("linear"),), {}))
    assert fmt.name("\u202eevil") == "\u2068\u202eevil\u2069"
    assert fmt.display_name("tiny-var linear 1/4 + sjd: wide 8") == "tiny-var LineAR 1/4 + SJD: wide 8"
    assert fmt.display_name("my-linear linear_2 1/4") == "my-linear linear_2 1/4"


def test_keys_of_other_versions_are_kept_and_a_wrong_type_is_named_with_its_key() -> None:
    facts = Facts.from_json(json.loads(json.dumps(STORED)))
    assert facts.to_json() == STORED
    assert (facts.kv_by_step, facts.reused) == (LiveBytes([1], [8.5], unknown={"later": 1}), Reused(["fid"], "cafe"))
    assert (facts.limit, facts.unknown.keys()) == (None, {"limit", "of_a_later_version"}), "a limit of another version is no limit"
    assert Facts.from_json({"kernel": None}) == Facts()
    for key, value, problem in (
        ("kernel", 3, "kernel is 3, not a text"), ("other_load", "high", "other_load is 'high', not a number"),
        ("other_load", True, "not a number"), ("other_load", float("nan"), "not a number"), ("threads", 1.5, "not an integer"),
        ("full_beside", {"a": 1}, "not a list"), ("full_beside", [1, "a"], "full_beside.1 is 'a'"), ("pair", 5, "pair is 5, not a table"),
        ("slope", {**STORED["slope"], "r2": []}, "slope.r2 is [], not a number"), ("intervals", {"fid": [[]]}, "intervals.fid.0")):
        with pytest.raises(BadField) as raised:
            Facts.from_json({key: value})
        assert problem in str(raised.value)


def test_a_report_column_of_a_new_value_is_an_edit_of_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field in ``core/facts.py``, and the line that fills it where it is measured."""
    column = stored("tokens that were watched", "tokens", column="Watched tokens")
    wider = make_dataclass("wider", [("watched", int | None, column)], bases=(Facts,), frozen=True)
    monkeypatch.setattr(columns, "Facts", wider)
    outcomes = [replace(o, facts=wider.from_json({**o.facts.to_json(), "watched": 7})) for o in sample.outcomes()]
    page = render(build(sample.RUN, outcomes))
    assert ('data-k="watched"' in page, "7 tokens" in page, "watched" in frame(outcomes).metric.tolist()) == (True, True, True)


@pytest.mark.parametrize(("text", "public"), [
    ("weights file:///home/ada/x.pth", "weights …/x.pth"), ("see ~ada/y/z.txt", "see …/z.txt"), (r"\\corp\share\ada\w.bin", "…/w.bin"),
    ("/data/ada/model.pth", "…/model.pth"), (r"C:\Users\ada\x", "…/x"), ("../ada/x", "…/x"),
    ("in postgresql://bench:hunter2@db/results", "in a URL"), ("s3://bucket/ada/x", "a URL"), ("http://wiki.lab.internal/ada", "a URL"),
    ("https://ada:hunter2@github.com/x", "a URL"), ("http://10.0.0.7:8080/ada", "a URL"),
    ("https://x.org/a?key=hunter2", "https://x.org/a"), ("hf_abcdefghijklmnopqrstuv", "a secret"),
    ("with ghp_abcdefghijklmnopqrstuv.", "with a secret."), ("password=hunter2;", "a secret;"), ("API_KEY: hunter2", "a secret"),
    ("Bearer abcdefghijkl", "a secret"), ("--password hunter2", "a secret"), ('{"password": "hunter2"}', '{"a secret'),
    ("PGPASSWORD=hunter2 x", "a secret x"), ("AccountKey=hunter2", "a secret"), ("Authorization: Basic aHVudGVy", "a secret"),
    ("-----BEGIN KEY----- aHVudGVy", "a secret"), ("npm_abcdefghijklmnopqrst", "a secret"), ("C:/Users/ada/x", "…/x"),
    ("in '/data/ada b/my x'", "in '…/my x'"), ("HOME=/home/ada", "HOME=…/"), (r"C:\Users\ada", "…/"), ("USER=ada", "an address"),
    ("ada@example.org", "an address"), ("by ada@node17", "by an address"), ("git@github.com:lab/x.git", "an address"),
    ("on node17.gpu.example.org", "on a host"), ("on GPU-0123abcd-99", "on a device"),
    *((text, text) for text in (
        "https://arxiv.org/abs/2401.1", "hf:org/repo@main:file.pth", "repo@v1.0", "12.8.93.0", "a/b, 1/2 and K/V", "model.tar.gz",
        "cachemark.core.spec", "tokens: 256", "not separable from window"))])
def test_a_text_loses_paths_secrets_people_and_hosts(text: str, public: str) -> None:
    assert scrubbed({"note": [text]}) == {"note": [public]}
