"""Resources that a built page would load from other hosts. Links do not count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

FOREIGN = re.compile(r"(?:https?:)?//[^/]", re.I)
NOT_LOADED = {("a", "href"), ("form", "action"), ("blockquote", "cite"), ("link canonical", "href")}
_ADDRESSES = {"src", "href", "data", "poster", "srcset", "action", "xlink:href"}
_CSS = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", re.I)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._styled = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        kind = f"link {attributes.get('rel', '')}" if tag == "link" else tag
        self._styled = tag == "style"
        self.found += [value for name, value in attributes.items()
                       if name in _ADDRESSES and (kind, name) not in NOT_LOADED and FOREIGN.match(value.strip())]
        self.found += _of_css(attributes.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._styled:
            self.found += _of_css(data)


def loads(text: str, suffix: str = ".html") -> list[str]:
    """Return addresses on other hosts that a page or style sheet loads."""
    if suffix == ".css":
        return _of_css(text)
    parser = _Loads()
    parser.feed(text)
    return parser.found


def loads_of(site: Path) -> Iterator[str]:
    """Yield every such address of a built site, prefixed by its file."""
    for file in sorted(site.rglob("*")):
        if file.suffix in (".html", ".css"):
            yield from (f"{file.relative_to(site)}: {address}" for address in loads(file.read_text(encoding="utf-8"), file.suffix))


def _of_css(text: str) -> list[str]:
    return [address for address in _CSS.findall(text) if FOREIGN.match(address)]
