"""Whatever a user writes into names, parameters, logs and facts is text in every format: one table of texts, one list of formats."""

import csv as csv_module
import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from unicodedata import category

import pytest
from markdown_it import MarkdownIt

from cachemark.analysis.report_view import ReportView, build
from cachemark.analysis.run_history import HistoryNight
from cachemark.export import asv
from cachemark.export.documents import latex, markdown
from cachemark.export.escape import for_latex, for_markdown
from cachemark.export.github import comment, summary, workflow_commands
from cachemark.export.junit import junit
from cachemark.export.records import csv_lines
from cachemark.export.tables import tables
from cachemark.gate.judgement import RunJudgement
from cachemark.report.page import render, site
from cachemark.store.db import Store
from export.test_asv import repository, save
from report import report_sample as sample
from report.page import Page

MENTION = "@user #12 GH-3 https://evil.example www.evil.example mail@evil.example [x](javascript:alert(1)) ![i](http://evil.example)"
LONG, TURNED = "A" * 10_000, "\u202eright to left\u2066 שלום مرحبا"
TEXTS = (
    sample.SCRIPTS, sample.BREAKERS, "nul\x00 esc\x1b sep\u2028 para\u2029 half\ud800 cdata]]> line\nbreak\r\ttab", TURNED, MENTION,
    r"\input{/etc/passwd} \\[2em] $x$ 100% a&b #1 _^~{}", LONG, "<" * 10_000, "", "\N{PILE OF POO}\u200d\N{SNOWMAN}",
    "{{ 7 * 7 }}", "__proto__", "\\", "'\"", "0|1|2", "[1]",
    "| a | b |\n|---|---|\n| c |", "```\ncode", "# heading\n- item\n1. one\n> quote\n---", "<!-- --> x", "1<sup>2", "$", "`", "*",
    "=cmd|' /C calc'!A0", "@SUM(A1)", "+1", "-1", "\t=1", " =1", "＝1",  # CSV
    "::error::x\n::error::y", "%0A::error::z",  # workflow commands
)
TURNS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067")
COMMANDS = set(re.findall(r"\w+", """usepackage begin end centering caption label toprule midrule bottomrule cmidrule multicolumn
emph textbf downarrow uparrow geq pm times dots footnotesize raggedright par textbackslash textasciicircum textasciitilde textless
textgreater textbar texttt char cdot"""))


@cache
def poisoned(text: str) -> tuple[ReportView, RunJudgement]:
    """A view and a comparison with a row of each verdict."""
    run, outcomes, comparison = sample.poison(text)
    (row,) = comparison.rows
    verdicts = ("regressed", "missing", "changed", "improved", "not_compared", "new", text)
    compared = sample.compared(*(replace(row, verdict=verdict) for verdict in verdicts))
    return build(run, outcomes, compared, not_reproduced=lambda case: text or "calm"), compared


def csv_of(text: str, samples: bool = False) -> str:
    outcomes = [replace(o, samples={name: values[:2] for name, values in o.samples.items()}) for o in sample.poison(text)[1]]
    return "".join(csv_lines(outcomes, samples=samples))


def history(text: str) -> str:
    """A page over nights with a step, which is told in a sentence and drawn with a mark."""
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    shared = {"model": text, "conditions": text}
    full = replace(full, case=replace(full.case, **shared))
    candidate = replace(candidate, case=replace(candidate.case, **shared, method=text))
    environment = replace(sample.ENVIRONMENT, fingerprint=text)
    nights = [HistoryNight(replace(sample.RUN, id=k, started=text, environment=environment),
                           [full, replace(candidate, samples={**candidate.samples, "latency": [(1 + k % 3 / 100) * (1 + (k > 15))]})])
              for k in range(30)]
    return render.render(build(sample.RUN, nights[-1].outcomes, nights=nights))


PRODUCED: dict[str, Callable[[str], str]] = {
    "html": sample.poisoned, "site": lambda text: site.index([site.listed(1, poisoned(text)[0])]),
    "markdown": lambda text: markdown(tables(poisoned(text)[0])), "latex": lambda text: latex(tables(poisoned(text)[0])),
    "summary": lambda text: summary(*poisoned(text)), "comment": lambda text: comment(*poisoned(text)),
    "annotations": lambda text: "\n".join(workflow_commands(poisoned(text)[1])), "junit": lambda text: junit(poisoned(text)[1], text),
    "csv": csv_of, "samples": lambda text: csv_of(text, samples=True), "history": history,
}
PAGES = ("html", "site", "history")


@cache
def produced(name: str, text: str) -> str:
    return PRODUCED[name](text)


def drawings(html: str) -> int:
    """The number of drawings, all of which are well-formed."""
    return len([ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in html.split("<svg")[1:]])


def html_has_no_element_and_no_attribute_of_a_user(calm: str, result: str) -> None:
    before, page = Page(calm), Page(result)
    assert {e.tag for e in page.elements} == {e.tag for e in before.elements}
    assert (len(page.all("script")), len(page.all("style")), drawings(result)) == (
        len(before.all("script")), len(before.all("style")), drawings(calm))
    for element in page.elements:
        assert not [name for name in element.attrs if name.startswith("on")]
        assert element.attrs.get("src", "data:").startswith("data:")
        assert element.attrs.get("href", "#").startswith(("#", "data:", "runs/"))
    loose = [text for text, parents in page.texts
             if "\u202e" in text and not {"bdi", "title", "text", "pre", "thead"} & set(parents) and "\u2068" not in text]
    assert loose == [], "text from right to left stays in its place"


def markdown_keeps_its_shape(calm: str, result: str) -> None:
    def shape(text: str) -> list[str]:
        kinds = []
        for token in MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").parse(text):
            kinds += [token.type, *(t.type for t in token.children or () if t.type not in ("text", "text_special", "softbreak"))]
        return kinds

    before, after = shape(calm), shape(result)
    assert set(after) <= set(before)
    for kind in ("html_block", "th_open", "heading_open"):
        assert after.count(kind) == before.count(kind), kind
    assert not {"link_open", "image", "code_inline", "fence", "code_block", "s_open"} & set(after)


def latex_has_our_commands_alone_and_its_rows(calm: str, result: str) -> None:
    calm, result = (re.sub(r"\\[{}$&#%_]", "", text) for text in (calm, result))
    assert set(re.findall(r"\\([a-zA-Z]+)", result)) <= COMMANDS
    assert not re.search(r"\\[^a-zA-Z\\ ]", result.replace("\\\\\n", ""))
    depths = [*itertools.accumulate((sign == "{") - (sign == "}") for sign in result)]
    assert (min(depths), depths[-1]) == (0, 0)
    assert result.count("\\\\") == result.count("\\\\\n") == calm.count("\\\\\n")
    assert (result.count("&"), result.count("%"), result.count("$") % 2) == (calm.count("&"), 1, 0)
    assert not re.search(r"(\\\\|rule)\s*[\[*]", result), "both would take it for an argument of theirs"
    assert all(c.isascii() or "À" <= c <= "ÿ" for c in result)


def csv_has_its_rows_and_no_formula(calm: str, result: str) -> None:
    before, after = (list(csv_module.reader(io.StringIO(text, newline=""))) for text in (calm, result))
    assert [len(row) for row in after] == [len(row) for row in before]
    for cell in (cell for row in after for cell in row if cell):
        number = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell)
        assert number or not cell.strip().startswith(tuple("=+-@＝＋－＠")), cell
        assert not {*map(category, cell)} & {"Cc", "Zl", "Zp"}, cell  # no line of a terminal or a CI log starts inside it


def junit_stays_well_formed(calm: str, result: str) -> None:
    before, after = (list(ET.fromstring(text.encode()).iter()) for text in (calm, result))
    assert [(e.tag, sorted(e.attrib)) for e in after] == [(e.tag, sorted(e.attrib)) for e in before]


def annotations_are_one_command_a_line(calm: str, result: str) -> None:
    lines = result.split("\n")
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]
    for line in lines:
        head, _, message = line.removeprefix("::").partition("::")
        assert re.fullmatch(r"\w+ title=[^:,]*", head)
        assert "%0A" not in message


READERS: dict[str, Callable[[str, str], None]] = {  # each compares what a text made with what a calm one made
    **dict.fromkeys(PAGES, html_has_no_element_and_no_attribute_of_a_user),
    **dict.fromkeys(("markdown", "summary", "comment"), markdown_keeps_its_shape), "latex": latex_has_our_commands_alone_and_its_rows,
    **dict.fromkeys(("csv", "samples"), csv_has_its_rows_and_no_formula), "junit": junit_stays_well_formed,
    "annotations": annotations_are_one_command_a_line,
}


@pytest.mark.parametrize("text", [
    pytest.param(text, id=ascii(text[:12]), marks=[pytest.mark.slow] if number % 3 else []) for number, text in enumerate(TEXTS)])
def test_a_text_stays_text_in_every_format(text: str) -> None:
    for name, reader in READERS.items():
        if name == "history" and text not in TEXTS[:8]:  # it takes longer than all others, and shares their escaping
            continue
        result = produced(name, text)
        result.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", result), name
        if name not in ("csv", "samples", *PAGES):  # data keeps what no display is harmed by
            assert not TURNS & set(result), name
            assert result.count("\u2068") == result.count("\u2069"), name
            assert len(result) < 400_000, name
        try:
            reader(produced(name, "calm"), result)
        except AssertionError as error:
            error.add_note(f"in {name}")
            raise


def test_scripts_are_shown_as_text_and_a_long_name_is_cut() -> None:
    assert len(produced("html", LONG)) - len(produced("html", "calm")) < 250_000
    html = produced("html", sample.SCRIPTS)
    page = Page(html)
    assert sample.SCRIPTS not in html
    assert page.find("h1").text == sample.SCRIPTS
    assert sample.SCRIPTS in page.find("title").text
    shown = [text for text, parents in Page(produced("html", LONG)).texts
             if LONG[:10] in text and not {"pre", "script", "style"} & set(parents)]
    assert max(map(len, shown)) <= 1300
    notes = next(e for e in Page(produced("history", LONG)).all("ul") if e.attrs.get("class") == "findings warn" and " at run 16" in e.text)
    assert len(notes.text) < 320


def test_escapes_are_the_texts_they_stand_for() -> None:
    assert for_markdown("<b> a_b|c & `d` [e] $f$ ~g~ \\ !h #1 {i}") == (
        "&lt;b&gt; a\\_b\\|c &amp; \\`d\\` \\[e\\] \\$f\\$ \\~g\\~ \\\\ \\!h \\#&#8288;1 \\{i\\}")
    assert for_markdown("שלום") == "\u2068שלום\u2069"
    assert for_markdown("full (other seeds) 1/2, 3.5 × a-b") == "full (other seeds) 1/2, 3.5 × a-b"
    assert for_latex(r"a_b & 50% {x} \y ~^ <|> \"[1]\" #$") == (
        r"a\_b \& 50\% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{} \textless{}\textbar{}\textgreater{} "
        r"\textbackslash{}{\char34}{[}1{]}\textbackslash{}{\char34} \#\$")
    assert for_latex("é × – \N{PILE OF POO} ð") == r"é $\times$ -- \texttt{U+1F4A9} \texttt{U+00F0}"
    mentioned = for_markdown(MENTION)
    assert not re.search(r"@\w|#(?!8288)\w|GH-|:/|(?i:www)\.|(?<!\\)\]\(", mentioned)
    (inline,) = [token for token in MarkdownIt().parse(mentioned) if token.type == "inline"]
    assert "".join(token.content for token in inline.children or ()).replace("\u2060", "") == MENTION


@pytest.mark.parametrize("text", [sample.SCRIPTS, TURNED, TEXTS[5], "\\"], ids=lambda text: ascii(text[:12]))
def test_files_for_asv_have_plain_names_and_labels(text: str, tmp_path: Path) -> None:
    (commit,) = repository(tmp_path / "repo", 1)
    run, outcomes, _ = sample.poison(text)
    with Store.open(tmp_path / "s.sqlite") as store:
        save(store, commit, outcomes, run.environment)
        (file,) = asv.write(store, tmp_path / "out", tmp_path / "repo").files
    assert re.fullmatch(r"[\w-]+/[0-9a-f]{8}-[\w-]+\.json", str(file.relative_to(tmp_path / "out")), re.ASCII)
    benchmarks = json.loads((tmp_path / "out" / "benchmarks.json").read_text())
    assert benchmarks.pop("version") == 2
    for name, entry in benchmarks.items():
        assert re.fullmatch(r"[\w-]+\.[0-9a-f]{8}\.\w+", name, re.ASCII)
        labels = [*(json.loads(label.replace("'", '"')) for label in entry["params"][0]), entry["pretty_name"]]
        assert all(re.fullmatch(r"[\w .,:()/+=@-]{1,160}", label, re.ASCII) for label in labels)
    facets = json.loads(file.read_text())["params"].values()
    assert all(re.fullmatch(r"[\w .,:()/+=@-]+", value, re.ASCII) for value in facets)
