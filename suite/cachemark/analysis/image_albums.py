"""Images of each case: a sprite with the full cache above the method, at the same seeds."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from ..core.errors import CachemarkError
from .case_group import CaseGroup
from .report_row import ReportRow

_FIXED = 4  # of the tiles, at the right end; the others are the worst by PSNR


@dataclass(frozen=True)
class Tile:
    """Column of a sprite: one of the ``worst`` seeds by PSNR, or a fixed one."""

    worst: bool
    seed: str
    label: str
    prompt: str

    @property
    def condition(self) -> str:
        """The prompt, or the class."""
        return self.prompt or (f"class {self.label}" if self.label else "")


@dataclass(frozen=True)
class Sprite:
    """PNG with two rows of tiles, ``tile`` pixels high and ``width`` wide, or why it is ``missing``."""

    row: ReportRow
    png: bytes = b""
    tile: int = 0
    width: int = 0
    tiles: tuple[Tile, ...] = ()
    missing: str = ""

    @property
    def worst(self) -> int:
        """Number of tiles, from the left, that show the worst seeds."""
        return sum(tile.worst for tile in self.tiles)


Albums = Mapping[str, Sequence[Sprite]]
"""Sprites by method, larger budgets first."""


def albums(group: CaseGroup, artifact: Callable[[str], bytes] | None) -> Albums:
    """Return the sprites of a group, none for random weights."""
    if group.random or artifact is None:
        return {}
    sprites: dict[str, list[Sprite]] = {}
    for row in group.rows:
        file = next((file for name, file in row.outcome.artifacts.items() if name.partition(".")[0] == "grid"), "")
        if row.ok and file:
            sprites.setdefault(row.name, []).append(_sprite(row, file, artifact))
    return sprites


@dataclass(frozen=True)
class Strip:
    """PNG with one row of tiles, ``tile`` pixels high, for each of ``names``, at the same seeds."""

    png: bytes
    tile: int
    columns: int
    names: tuple[str, ...]


def strip(pages: Albums, rows: Sequence[ReportRow]) -> Strip | None:
    """Return the fixed seeds of the full cache and of some rows, None without images."""
    sprites = {sprite.row.case.key: sprite for album in pages.values() for sprite in album if not sprite.missing}
    chosen = [sprites[row.case.key] for row in rows if row.case.key in sprites]
    if not chosen or len({(sprite.tile, sprite.width, sprite.worst, len(sprite.tiles)) for sprite in chosen}) > 1:
        return None
    tile, columns, first = chosen[0].tile, len(chosen[0].tiles) - chosen[0].worst, chosen[0].worst * chosen[0].width
    width = columns * chosen[0].width
    sheet = Image.new("RGB", (width, (1 + len(chosen)) * tile))
    for k, sprite in enumerate(chosen):
        with Image.open(io.BytesIO(sprite.png), formats=["PNG"]) as image:
            if k == 0:
                sheet.paste(image.crop((first, 0, first + width, tile)), (0, 0))
            sheet.paste(image.crop((first, tile, first + width, 2 * tile)), (0, (1 + k) * tile))
    drawn = io.BytesIO()
    sheet.save(drawn, format="PNG", optimize=True)
    return Strip(drawn.getvalue(), tile, columns, ("full cache", *(sprite.row.label for sprite in chosen)))


def _sprite(row: ReportRow, file: str, artifact: Callable[[str], bytes]) -> Sprite:
    try:
        png = artifact(file)
    except (CachemarkError, OSError, KeyError) as error:
        return Sprite(row, missing=f"The image file is missing: {error}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # only an error at twice as many pixels
            with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
                image.load()
                width, height = image.size
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        return Sprite(row, missing=f"The image file has more than {Image.MAX_IMAGE_PIXELS:,} pixels.")
    except (OSError, ValueError, SyntaxError):
        return Sprite(row, missing="The image file is not a PNG, or a damaged one.")
    facts = row.outcome.facts
    texts = [list(map(str, listed or ())) for listed in (facts.grid_seeds, facts.grid_classes, facts.grid_prompts)]
    tile, tile_width = height // 2, facts.grid_width or 0  # set only if images are not square
    wide = tile_width if tile_width > 0 else tile
    if not tile or width % wide or height % 2:
        return Sprite(row, missing=f"The image file is not a sprite of two rows of equal tiles ({width} × {height}).")
    columns = range(width // wide)
    tiles = (Tile(k < len(columns) - _FIXED, *(listed[k] if k < len(listed) else "" for listed in texts)) for k in columns)
    return Sprite(row, png, tile, wide, tuple(tiles))
