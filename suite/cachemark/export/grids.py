"""Images as one PNG: the full cache above methods, at the same seeds."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw, ImageFont

from ..analysis.case_group import case_groups
from ..analysis.image_albums import Strip, albums, strip
from ..core.errors import NothingMeasured, UnknownName, unknown
from ..core.result import Outcome
from ..core.wording import on_one_line

NAME = 28  # characters of a name that are shown
PAPER, INK = "white", "black"


def grid(outcomes: Sequence[Outcome], artifact: Callable[[str], bytes], cases: Sequence[str] = (), model: str | None = None) -> bytes:
    """Return a PNG of the full cache and ``cases`` by label (default: all), at the fixed seeds.

    ``artifact`` reads a stored file. Raises UnknownName, and NothingMeasured without images.
    """
    groups = case_groups(outcomes)
    if model is not None and model not in (models := [group.model for group in groups]):
        raise unknown("model", model, models)
    mine = [group for group in groups if model in (None, group.model)]
    labels = dict.fromkeys(row.case.label for group in mine for row in group.candidates)
    if wrong := next((label for label in cases if label not in labels), ""):
        raise unknown("case", wrong, labels)
    chosen = [(group, [row for row in group.candidates if not cases or row.case.label in cases]) for group in mine]
    drawn = {group.model: strip_ for group, rows in chosen if rows and (strip_ := strip(albums(group, artifact), rows))}
    if not drawn:
        raise NothingMeasured("No pictures of these cases were kept, or they differ in size.",
                              remedy="Name others; random weights have none.")
    if len(drawn) > 1:
        raise UnknownName(f"These cases are of several models: {', '.join(drawn)}.", remedy="Name one with --model.")
    return _named(next(iter(drawn.values())))


def _named(strip_: Strip) -> bytes:
    names = [on_one_line(name, NAME) for name in strip_.names]
    size = max(9, strip_.tile // 5)
    font = ImageFont.load_default(size)
    margin = int(max(font.getlength(name) for name in names)) + size
    with Image.open(io.BytesIO(strip_.png), formats=["PNG"]) as image:
        sheet = Image.new("RGB", (margin + image.width, image.height), PAPER)
        sheet.paste(image, (margin, 0))
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        pen.text((size // 2, (row + 0.5) * strip_.tile), name, fill=INK, font=font, anchor="lm")
    written = io.BytesIO()
    sheet.save(written, format="PNG", optimize=True)
    return written.getvalue()
