"""ZipAR: generates several lines at once, each a few tokens after the line above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cache.layout import Layout, Step
from ..contract.decoder import Decoder, Front
from ..core.errors import BadParameter, Unsupported
from .registry import decoder
from .windowed import WIDEST

APPROXIMATE = ("It is approximate: it generates tokens before their upper-right neighbors exist, so both the tokens and their distribution "
               "differ from sequential decoding.")


@decoder("zipar")
@dataclass
class ZipAR(Decoder):
    """Generates one token in each of several lines per pass.

    A line starts when the line above has ``window`` tokens. "ZipAR: Parallel Auto-regressive Image Generation through Spatial Locality"
    (arXiv 2412.04062), with a fixed window. The second line starts after the first is complete. With n lines of m tokens and a window of s
    < m, a generation always has 2·m + (n − 2)·s passes; all images of a batch advance alike. With s = m it is sequential decoding.

    Until the last token of the line above exists, the newest token two lines above substitutes for it: it is fed at the missing token's
    position to generate the first token of a line. Its entry is replaced when the missing token is fed. In a model with end-of-line
    tokens, the end-of-line token is the substitute.

    Differs from the authors' code for LlamaGen: positions without an entry are masked (theirs: attended with a zero key and value), the
    end of ``cfg_interval`` is a position (theirs: a number of generated tokens), and images share the noise of sequential decoding. Their
    code for Lumina-mGPT also starts the second line early, which takes m − s fewer passes. Neither has the paper's adaptive window.
    """

    title = "ZipAR"
    source = "ZipAR, arXiv 2412.04062"
    footnotes = (APPROXIMATE,)
    same_noise = scheduled = True

    window: int = 8

    def check(self) -> None:
        self.check_range("window", 2 <= self.window <= WIDEST, f"Use 2 … {WIDEST} tokens of the line above.")

    def check_layout(self, layout: Layout) -> None:
        if layout.previewed:
            raise Unsupported(f"{self.name}: the first {layout.previewed} lines are a preview, whose tokens are not below each other.",
                              remedy="Use a decoder that keeps the raster order, such as jacobi.")
        if self.window > layout.line:
            raise BadParameter(f"{self.name}: window = {self.window} is wider than a line of {layout.line} tokens.",
                               remedy=f"Use 2 … {layout.line}.")

    def schedule(self, layout: Layout) -> Sequence[Front]:
        line, total = layout.line, self._start(layout, layout.lines - 1) + layout.line
        fronts, entries = [Front(Step(0, total), draws=(0,))], 0
        for index in range(1, total):
            ended = [place for row in range(1, layout.lines - 1) if (place := self._ended(layout, row, index))]
            newest = [(row * line + column, self._before(layout, row, column)) for row in range(layout.lines)
                      if 0 <= (column := index - self._start(layout, row)) < line]
            places = (*ended, *(place - 1 for place, _ in newest))
            entries -= len(ended)
            step = Step(index, total, entries, len(places), max(places) // line + 1, ("token",), places=places)
            fronts.append(Front(step, (*ended, *(token for _, token in newest)), tuple(place for place, _ in newest), tuple(ended)))
            entries += len(places)
        return fronts

    def _start(self, layout: Layout, row: int) -> int:
        """Return the pass that generates the first token of a line."""
        return layout.line + (row - 1) * self.window if row else 0

    def _ended(self, layout: Layout, row: int, index: int) -> int:
        """Return the last token of a line if the previous pass generated it beside the next line; else 0."""
        drawn = self._start(layout, row) + layout.line == index
        return (row + 1) * layout.line - 1 if drawn and self._start(layout, row + 1) < index else 0

    def _before(self, layout: Layout, row: int, column: int) -> int:
        """Return the token fed to generate ``row``, ``column``: the previous one, or its substitute."""
        line, place = layout.line, row * layout.line + column
        if column or row < 2 or self.window == line:
            return place - 1
        if layout.line_ends:
            return line - 1
        return (row - 2) * line + min(line, self._start(layout, row) - self._start(layout, row - 2)) - 1
