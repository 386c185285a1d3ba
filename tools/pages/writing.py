"""Write Markdown tables between two marks of a page, and format their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cachemark.core.formatting import DASH
from cachemark.stats.intervals import Interval


def around(page: Path, begin: str, end: str) -> tuple[str, str]:
    """Return the text of a page before the first mark and after the second."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not closed:
        raise SystemExit(f"{page} lacks the marks {begin} and {end}.")
    return before, after


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of a page."""
    before, after = around(page, begin, end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of formatted cells."""
    return "\n".join(f"| {' | '.join(cells)} |" if cells else "|---" * len(head) + "|" for cells in (head, (), *rows))


def rounded(interval: Interval) -> list[float]:
    """Return a value and the ends of its interval for a file; without an interval, three times the value."""
    return [round(value, 5) for value in (interval.value, interval.low, interval.high)]


def ends(interval: Sequence[float] | None, places: int) -> str:
    """Format a value with the ends of its interval, if it has one."""
    if interval is None:
        return ""
    value, *limits = (f"{number:.{places}f}".replace("-", "−") for number in interval)
    return value if len(set(interval[1:])) < 2 else f"{value} [{', '.join(limits)}]"


def stated(less: Sequence[float]) -> bool:
    """Return whether a difference has an interval."""
    return len(set(less[1:])) == 2


def apart(less: Sequence[float]) -> bool:
    """Return whether a difference has an interval that leaves out 0."""
    return len(less) == 3 and stated(less) and not less[1] <= 0 <= less[2]


def verdict(less: Mapping[str, Sequence[float]]) -> str:
    """Return which differences have an interval without 0, and which have no interval; a dash if none has one."""
    different = [name for name, difference in less.items() if apart(difference)]
    unknown = [name for name, difference in less.items() if not stated(difference)]
    if len(unknown) == len(less):
        return DASH
    summary = f"{', '.join(different)} differ{'s' if len(different) == 1 else ''}" if different else "equal within the intervals"
    return f"{summary}; no interval of {', '.join(unknown)}" if unknown else summary
