"""Parts of a large page that a browser builds when they are looked at: thousands of cases are millions of elements, and building all of
them before the first is read takes many seconds."""

from __future__ import annotations

from markupsafe import Markup

LARGE = 400  # cases from which a page is built part by part


class DeferredSections:
    """The parts of a page: in their places, or, where it is not ``whole``, at the page's end as text, by number."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.parts: list[Markup] = []

    def put(self, part: Markup) -> Markup:
        """The part itself, or an element that takes its place and names it. A part may hold places of other parts."""
        return part if self.whole else Markup(f'<div class="later" data-part="{self.keep(part)}"></div>')

    def keep(self, part: Markup) -> int:
        """The number of a part that goes to the page's end."""
        assert "</script" not in part, "all text of users is escaped"
        self.parts.append(part)
        return len(self.parts) - 1
