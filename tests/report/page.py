"""Reads a rendered page back without a browser: its elements, its tables, and whether every tag is closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "br", "hr", "input", "col"}
_TEXT = {"p", "li", "dt", "dd", "h1", "h2", "h3", "h4", "summary", "figcaption", "pre"}


@dataclass
class Element:
    tag: str
    attrs: dict[str, str]
    children: list[Element] = field(default_factory=list)
    parents: tuple[str, ...] = ()
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Page(HTMLParser):
    """``elements`` in document order; ``texts`` pairs every piece of text with the tags around it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[tuple[str, tuple[str, ...]]] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {[e.tag for e in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {k: v or "" for k, v in attrs}, parents=tuple(e.tag for e in self._open))
        self.elements.append(element)
        if self._open:
            self._open[-1].children.append(element)
        if tag in ("small", "span"):
            self._add(" ")  # set apart on the page, so set apart in its text
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> where {self._open[-1].tag} is open"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((data, tuple(e.tag for e in self._open)))
        self._add(data)

    def _add(self, text: str) -> None:
        for element in self._open:
            element.pieces.append(text)

    def all(self, tag: str) -> list[Element]:
        return [e for e in self.elements if e.tag == tag]

    def find(self, tag: str, **attrs: str) -> Element:
        expected = {k.replace("_", "-").rstrip("-"): v for k, v in attrs.items()}
        return next(e for e in self.elements if e.tag == tag and all(v in e.attrs.get(k, "").split() for k, v in expected.items()))

    def written(self) -> str:
        """Every text that is shown, a line per row of a table and per paragraph, heading and list item."""
        lines = []
        for element in self.elements:
            if element.tag == "tr":
                lines.append(" | ".join(" ".join(cell.text.split()) for cell in element.children))
            elif element.tag in _TEXT and "table" not in element.parents and not any(child.tag in _TEXT for child in element.children):
                lines.append(" ".join(element.text.split()))
        return "\n".join(lines) + "\n"
