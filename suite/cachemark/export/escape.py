"""User text made safe for LaTeX, Markdown and spreadsheets.

The results contain no command, tag, link, mention or formula, and never end a cell or change the reading direction.
"""

from __future__ import annotations

import re
import unicodedata

from ..core.wording import on_one_line

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"{\char34}", "`": "{`}", "[": "{[}", "]": "{]}", "*": "{*}",  # \\ takes a star or a bracket that follows it, even on a new line
    "×": r"$\times$", "±": r"$\pm$", "−": "$-$", "÷": r"$\div$", "–": "--", "…": r"\dots{}", "·": r"$\cdot$", "Δ": r"$\Delta$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$", "√": r"$\surd$", "\u00a0": "~",
}  # fmt: skip
_BEYOND_OT1 = "ÐðÞþ"  # letters of Latin-1 that the font encoding of an ordinary document lacks
JOINER = "&#8288;"  # invisible; prevents that its two sides are parsed as one word
_MARKDOWN = str.maketrans({
    **{mark: f"\\{mark}" for mark in "\\`*_{}[]+!|~$"}, "&": "&amp;", "<": "&lt;", ">": "&gt;", "@": f"@{JOINER}", "#": f"\\#{JOINER}",
})
_LINKED = re.compile(r"(?i)(www(?=\.)|:(?=/)|\bgh(?=-))")  # start of an address, or of a reference to an issue
_FORMULA = tuple("=+-@＝＋－＠")


def for_latex(text: object) -> str:
    """Return text for pdfLaTeX; unsupported characters become ``U+1F600``."""
    return "".join(map(_in_latex, on_one_line(text)))


def _in_latex(char: str) -> str:
    if replacement := _LATEX.get(char):
        return replacement
    if char.isascii() or ("À" <= char <= "ÿ" and char not in _BEYOND_OT1):
        return char
    return rf"\texttt{{U+{ord(char):04X}}}"


def for_markdown(text: object, limit: int = 0) -> str:
    """Return text without markup, tags, links, mentions and references; right-to-left text is isolated."""
    line = on_one_line(text, limit)
    safe = _LINKED.sub(rf"\1{JOINER}", line.translate(_MARKDOWN))
    turns = any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in line)
    return f"\u2068{safe}\u2069" if turns else safe


def for_sheet(text: object) -> str:
    """Return text for a spreadsheet cell; formulas get a leading apostrophe."""
    clean = on_one_line(text)  # in a terminal or a CI log a line of a cell could start with a command
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def slug(text: object, limit: int = 60) -> str:
    """Return letters, digits, dashes and underscores for a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", on_one_line(text)).strip("-")[:limit].strip("-")
