"""Tables of Markdown between two marks of a page, and figures in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cachemark.core.formatting import DASH
from cachemark.stats.intervals import Interval

CONTENTS = "<!-- contents -->", "<!-- end of contents -->"


def around(page: Path, begin: str, end: str) -> tuple[str, str]:
    """The text of a page before two marks and behind them."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not closed:
        raise SystemExit(f"{page} lacks the marks {begin} and {end}.")
    return before, after


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between two marks of a page, in place of what stands there."""
    before, after = around(page, begin, end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def contents(page: Path) -> str:
    """A list of links to the headings of a page."""
    found = re.findall(r"^(##+) (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join(f"{'    ' * (len(marks) - 2)}- [{title}](#{re.sub(r'[^a-z0-9 -]', '', title.lower()).replace(' ', '-')})"
                     for marks, title in found)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are written already."""
    return "\n".join(f"| {' | '.join(cells)} |" if cells else "|---" * len(head) + "|" for cells in (head, (), *rows))


def rounded(found: Interval) -> list[float]:
    """A value with the ends of its interval, as a file keeps them; three times the value where it has none."""
    return [round(value, 5) for value in (found.value, found.low, found.high)]


def ends(found: Sequence[float] | None, places: int) -> str:
    """A value with the ends of its interval, where they are given and differ."""
    if found is None:
        return ""
    value, *limits = (f"{number:.{places}f}".replace("-", "−") for number in found)
    return value if len(set(found[1:])) < 2 else f"{value} [{', '.join(limits)}]"


def stated(less: Sequence[float]) -> bool:
    """Return whether a difference has an interval."""
    return len(set(less[1:])) == 2


def apart(less: Sequence[float]) -> bool:
    """Return whether a difference has an interval that leaves out 0."""
    return len(less) == 3 and stated(less) and not less[1] <= 0 <= less[2]


def verdict(less: Mapping[str, Sequence[float]]) -> str:
    """The names of the differences whose interval leaves out 0, as one says that they differ, and of those that have none and so tell
    nothing; a dash where none has one."""
    other, untold = [name for name, one in less.items() if apart(one)], [name for name, one in less.items() if not stated(one)]
    if len(untold) == len(less):
        return DASH
    said = f"{', '.join(other)} differ{'s' if len(other) == 1 else ''}" if other else "equal within the intervals"
    return f"{said}; {', '.join(untold)} not told" if untold else said
