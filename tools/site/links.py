"""Links that leave ``docs/``: their targets become part of the site.

Markdown files become pages, files that a browser can display are copied, and other files become text pages. Pages can be read in the
repository and on the site, and the site needs no other host.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

DOCS = "docs"
OUTSIDE = "repository"  # the folder of the site for files outside docs/
SHOWN = frozenset({".html", ".svg", ".png", ".pdf"})
LANGUAGES = {".py": "python", ".sh": "bash", ".slurm": "bash", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")


def place(path: str) -> str:
    """Return the path within the site of a file of the repository; both use slashes."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    suffix = posixpath.splitext(path)[1]
    visible = "/".join(part.lstrip(".") for part in path.split("/"))  # hosts ignore folders that start with a dot
    return f"{OUTSIDE}/{visible}" + ("" if suffix == ".md" or suffix in SHOWN else ".md")


def rewritten(text: str, path: str) -> str:
    """Return the text of the page ``path`` with links as they are on the site."""
    here = posixpath.dirname(place(path))
    return _replaced(text, lambda link: _kept(link, posixpath.relpath(place(_target(link, path)), here or ".")))


def brought(root: Path, pages: Iterable[str]) -> dict[str, str | None]:
    """Return the contents of linked files outside ``docs/`` by path, recursively.

    None means that the file itself is copied. mkdocs reports dead links.
    """
    contents: dict[str, str | None] = {}
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        for link in links((root / page).read_text(encoding="utf-8")):
            target = _target(link, page)
            if target.startswith((f"{DOCS}/", "../")) or target in contents or not (root / target).is_file():
                continue
            contents[target] = _content(root, target)
            if target.endswith(".md"):
                waiting.append(target)
    return contents


def links(text: str) -> Iterator[str]:
    """Yield the relative links of a page without anchors, outside code blocks."""
    return (found[1] for found in _LINK.finditer(_FENCE.sub("", text)))


def _content(root: Path, path: str) -> str | None:
    suffix = posixpath.splitext(path)[1]
    if suffix in SHOWN:
        return None
    text = (root / path).read_text(encoding="utf-8")
    if suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"# {path}\n\n{fence}{LANGUAGES.get(suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def _target(link: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _kept(link: str, new: str) -> str:
    return link if posixpath.normpath(link) == new else new


def _replaced(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(lambda found: change(found[1]), text[end:fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(lambda found: change(found[1]), text[end:])])
