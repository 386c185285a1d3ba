"""LaTeX itself sets the tables, whatever a user wrote into them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import report_sample as sample
from test_export_hostile import EVIL, texts

from cachemark.analysis.report_view import build
from cachemark.export.documents import latex
from cachemark.export.tables import tables

PDFLATEX, TECTONIC = shutil.which("pdflatex"), shutil.which("tectonic")
pytestmark = pytest.mark.skipif(
    not (PDFLATEX or TECTONIC), reason="no LaTeX here; `apt-get install texlive-latex-base texlive-latex-recommended` gives one")


def compiled(parts: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What LaTeX says of a document with these parts, a page each."""
    body = "\n\\clearpage\n".join(parts)
    text = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "page.tex").write_text(text, encoding="utf-8")
    call = [PDFLATEX, "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "page.tex"] if PDFLATEX else [
        str(TECTONIC), "--untrusted", "--only-cached", "page.tex"]
    return subprocess.run(call, cwd=folder, capture_output=True, timeout=120, encoding="utf-8", errors="replace")


def test_the_tables_of_a_run_are_a_document(tmp_path: Path) -> None:
    done = compiled([latex(tables(build(sample.RUN, sample.mixed(), sample.comparison())))], tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_what_users_write_is_set_as_text(tmp_path: Path) -> None:
    done = compiled([texts(evil)["latex"] for evil in EVIL], tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "/etc/passwd" not in done.stdout  # a file that was read is named there


def test_a_broken_table_would_be_seen(tmp_path: Path) -> None:
    assert compiled([r"\begin{tabular}{l} a & b \\ \end{tabular}"], tmp_path).returncode != 0
