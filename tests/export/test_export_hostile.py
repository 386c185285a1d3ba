"""Whatever a user writes into names, parameters, logs and facts is text in every format."""

from __future__ import annotations

import csv as csv_module
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from test_asv import repository, save

from cachemark.analysis.report_view import ReportView, build
from cachemark.export import asv
from cachemark.export.documents import latex, markdown
from cachemark.export.escape import for_latex, for_markdown
from cachemark.export.frames import csv, frame, samples_frame
from cachemark.export.github import comment, summary, workflow_commands
from cachemark.export.junit import junit
from cachemark.export.tables import tables
from cachemark.gate.judgement import RunJudgement
from cachemark.store.db import Store
from report import report_sample as sample

CONTROLS = "nul\x00 esc\x1b sep\u2028 para\u2029 half\ud800 cdata]]> line\nbreak\r\ttab"
TURNED = "\u202eright to left\u2066 שלום مرحبا"
TEX = r"\input{/etc/passwd} \\[2em] $x$ 100% a&b #1 _^~{}"
MENTION = "@user #12 GH-3 https://evil.example www.evil.example mail@evil.example [x](javascript:alert(1)) ![i](http://evil.example)"
FORMULA = "=cmd|' /C calc'!A0"
EVIL = (sample.SCRIPTS, sample.BREAKERS, CONTROLS, TURNED, TEX, MENTION, FORMULA, "A" * 10_000, "<" * 10_000, "",
        "\N{PILE OF POO}\u200d\N{SNOWMAN}", "{{ 7 * 7 }}", "__proto__", "\\")
TURNS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067")


def hostile(*of_format: str) -> pytest.MarkDecorator:
    """Run a test with texts that may harm any format, and with those that mean something to its format."""
    return pytest.mark.parametrize("evil", [*EVIL, *of_format], ids=lambda e: ascii(e[:12]))


@cache
def poisoned(evil: str) -> tuple[ReportView, RunJudgement]:
    """A page and a comparison with a row of each verdict."""
    run, results, comparison = sample.poison(evil)
    (row,) = comparison.rows
    verdicts = ("regressed", "missing", "changed", "improved", "not_compared", "new", evil)
    compared = sample.compared(*(replace(row, verdict=verdict) for verdict in verdicts))
    return build(run, results, compared, not_reproduced=lambda case: evil or "calm"), compared


@cache
def texts(evil: str) -> dict[str, str]:
    """Every format that is text."""
    view, comparison = poisoned(evil)
    _, results, _ = sample.poison(evil)
    few = [replace(o, samples={name: values[:2] for name, values in o.samples.items()}) for o in results]
    return {
        "markdown": markdown(tables(view)), "latex": latex(tables(view)),
        "summary": summary(view, comparison),
        "comment": comment(view, comparison), "annotations": "\n".join(workflow_commands(comparison)),
        "junit": junit(comparison, evil), "csv": csv(frame(few)), "samples": csv(samples_frame(few)),
    }  # fmt: skip


@hostile()
def test_no_text_holds_controls_half_characters_or_marks_of_direction(evil: str) -> None:
    for name, text in texts(evil).items():
        text.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), name
        if name not in ("csv", "samples"):  # data keeps what no display is harmed by
            assert not TURNS & set(text), name
            assert text.count("\u2068") == text.count("\u2069"), name
            assert len(text) < 400_000, name


def shape(text: str) -> list[str]:
    """The kinds of tokens of a Markdown text, one after the other, with those inside of lines; plain text in between is one token."""
    collected = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").parse(text):
        collected += [token.type, *(t.type for t in token.children or () if t.type not in ("text", "text_special"))]
    return [f"{kind}" for kind in collected if kind != "softbreak"]


@hostile("| a | b |\n|---|---|\n| c |", "```\ncode", "# heading\n- item\n1. one\n> quote\n---", "<!-- --> x", "1<sup>2", "$", "`", "*")
@pytest.mark.parametrize("name", ["markdown", "summary", "comment"])
def test_markdown_keeps_its_shape(name: str, evil: str) -> None:
    calm, result = shape(texts("calm")[name]), shape(texts(evil)[name])
    assert set(result) <= set(calm)
    for kind in ("html_block", "th_open", "tr_open", "td_open", "heading_open", "strong_open", "list_item_open", "html_inline"):
        assert result.count(kind) == calm.count(kind) or name != "markdown", kind
    assert not {"link_open", "image", "code_inline", "fence", "code_block", "s_open"} & set(result)


def test_mentions_references_and_addresses_are_not_recognised() -> None:
    text = for_markdown(MENTION)
    assert not re.search(r"@\w|#(?!8288)\w|GH-|:/|(?i:www)\.|(?<!\\)\]\(", text)
    (inline,) = [t for t in MarkdownIt().parse(text) if t.type == "inline"]
    assert "".join(t.content for t in inline.children or ()).replace("\u2060", "") == MENTION


def test_markdown_escapes_are_the_texts_they_stand_for() -> None:
    assert for_markdown("<b> a_b|c & `d` [e] $f$ ~g~ \\ !h #1 {i}") == (
        "&lt;b&gt; a\\_b\\|c &amp; \\`d\\` \\[e\\] \\$f\\$ \\~g\\~ \\\\ \\!h \\#&#8288;1 \\{i\\}")
    assert for_markdown("שלום") == "\u2068שלום\u2069"
    assert for_markdown("full (other seeds) 1/2, 3.5 × a-b") == "full (other seeds) 1/2, 3.5 × a-b"


COMMANDS = {"usepackage",
            "begin", "end", "centering", "caption", "label",
            "toprule", "midrule", "bottomrule", "cmidrule", "multicolumn", "emph", "textbf",
            "downarrow", "uparrow", "geq", "pm", "times", "dots", "footnotesize", "raggedright", "par", "textbackslash", "textasciicircum",
            "textasciitilde", "textless", "textgreater", "textbar", "texttt", "char", "cdot"}  # fmt: skip


def undressed(text: str) -> str:
    """LaTeX without what is escaped."""
    return re.sub(r"\\[{}$&#%_]", "", text)


@hostile("*", "[1]", "$", "`", "'\"")
def test_latex_has_our_commands_alone_and_its_rows(evil: str) -> None:
    calm, result = undressed(texts("calm")["latex"]), undressed(texts(evil)["latex"])
    assert set(re.findall(r"\\([a-zA-Z]+)", result)) <= COMMANDS
    assert not re.search(r"\\[^a-zA-Z\\ ]", result.replace("\\\\\n", ""))
    depth = 0
    for sign in result:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert result.count("\\\\") == result.count("\\\\\n") == calm.count("\\\\\n")
    assert result.count("&") == calm.count("&")
    assert result.count("$") % 2 == 0
    assert result.count("%") == 1  # the comment at the top
    assert not re.search(r"(\\\\|rule)\s*[\[*]", result)  # both would take it for an argument of theirs
    assert all(c.isascii() or "À" <= c <= "ÿ" for c in result)


def test_latex_escapes_are_the_texts_they_stand_for() -> None:
    assert for_latex(r"a_b & 50% {x} \y ~^ <|> \"[1]\" #$") == (
        r"a\_b \& 50\% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{} \textless{}\textbar{}\textgreater{} "
        r"\textbackslash{}{\char34}{[}1{]}\textbackslash{}{\char34} \#\$")
    assert for_latex("é × – \N{PILE OF POO} ð") == r"é $\times$ -- \texttt{U+1F4A9} \texttt{U+00F0}"


@hostile("@SUM(A1)", "+1", "-1", "\t=1", " =1", "＝1", "'\"")
@pytest.mark.parametrize("name", ["csv", "samples"])
def test_csv_has_its_rows_and_no_formula(name: str, evil: str) -> None:
    calm, result = (list(csv_module.reader(io.StringIO(texts(e)[name], newline=""))) for e in ("calm", evil))
    assert [len(row) for row in result] == [len(row) for row in calm]
    for cell in (cell for row in result for cell in row if cell):
        number = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell)
        assert number or not cell.strip().startswith(tuple("=+-@＝＋－＠")), cell
        assert not cell.startswith(("\t", "\r"))


@hostile("'\"")
def test_junit_stays_well_formed(evil: str) -> None:
    calm, element = (ET.fromstring(texts(e)["junit"].encode()) for e in ("calm", evil))
    assert [e.tag for e in element.iter()] == [e.tag for e in calm.iter()]
    assert [sorted(e.attrib) for e in element.iter()] == [sorted(e.attrib) for e in calm.iter()]


@hostile("::error::x\n::error::y", "%0A::error::z")
def test_annotations_are_one_command_a_line(evil: str) -> None:
    lines = texts(evil)["annotations"].split("\n")
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]
    for line in lines:
        head, _, remaining = line.removeprefix("::").partition("::")
        assert re.fullmatch(r"\w+ title=[^:,]*", head)
        assert "%0A" not in remaining


@pytest.mark.parametrize("evil", [sample.SCRIPTS, TURNED, TEX, FORMULA, "A" * 500, "\\"], ids=lambda e: ascii(e[:12]))
def test_files_for_asv_have_plain_names_and_labels(evil: str, tmp_path: Path) -> None:
    (commit,) = repository(tmp_path / "repo", 1)
    run, results, _ = sample.poison(evil)
    with Store.open(tmp_path / "s.sqlite") as store:
        save(store, commit, results, run.environment)
        written = asv.write(store, tmp_path / "out", tmp_path / "repo")
    (file,) = written.files
    assert re.fullmatch(r"[\w-]+/[0-9a-f]{8}-[\w-]+\.json", str(file.relative_to(tmp_path / "out")), re.ASCII)
    known_names = json.loads((tmp_path / "out" / "benchmarks.json").read_text())
    assert known_names.pop("version") == 2
    assert known_names
    for name, entry in known_names.items():
        assert re.fullmatch(r"[\w-]+\.[0-9a-f]{8}\.\w+", name, re.ASCII)
        labels = [*(json.loads(label.replace("'", '"')) for label in entry["params"][0]), entry["pretty_name"]]
        assert all(re.fullmatch(r"[\w .,:()/+=@-]{1,160}", label, re.ASCII) for label in labels)
    facets = json.loads(file.read_text())["params"].values()
    assert all(re.fullmatch(r"[\w .,:()/+=@-]+", value, re.ASCII) for value in facets)
