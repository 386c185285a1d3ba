"""Images as one PNG: which rows it has, in which order, and when there is none."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import report_sample as sample
from PIL import Image

from cachemark.core.errors import NothingMeasured, UnknownName
from cachemark.export.grids import grid

TILE, FIXED = 64, 4


def rows(png: bytes) -> list[bytes]:
    """The pixels of each row of tiles, without the names."""
    with Image.open(io.BytesIO(png)) as image:
        remaining = image.width - FIXED * TILE
        assert remaining > TILE, "there is room for names"
        assert image.crop((0, 0, remaining, image.height)).getcolors(2) is None, "and they are drawn"
        return [image.crop((remaining, top, image.width, top + TILE)).tobytes() for top in range(0, image.height, TILE)]


def test_the_full_cache_stands_above_each_case_at_the_fixed_seeds() -> None:
    result = rows(grid(sample.outcomes(), sample.sprite, ["linear 1/4", "window 1/4"]))
    assert len(result) == 3
    with Image.open(io.BytesIO(sample.sprite("linear-1/4"))) as image:
        full, linear = (image.crop((8 * TILE, top, 12 * TILE, top + TILE)).tobytes() for top in (0, TILE))
    assert result[0] in (full, *[rows(grid(sample.outcomes(), sample.sprite, ["window 1/4"]))[0]])
    assert linear in result[1:]


def test_all_methods_are_shown_where_none_is_named() -> None:
    assert len(rows(grid(sample.outcomes(), sample.sprite))) == 1 + len(sample.candidates())


@pytest.mark.parametrize(("cases", "model", "said"), [(["linear 1/8"], None, "Unknown case"), ([], "tiny-vra", "Unknown model")])
def test_a_wrong_name_is_refused(cases: list[str], model: str | None, said: str) -> None:
    with pytest.raises(UnknownName, match=said):
        grid(sample.outcomes(), sample.sprite, cases, model)


def test_two_models_need_a_name() -> None:
    other = [replace(o, case=replace(o.case, model="another")) for o in sample.outcomes()]
    pair = [*sample.outcomes(), *other]
    with pytest.raises(UnknownName, match="several models: tiny-llamagen, another"):
        grid(pair, sample.sprite, ["linear 1/4"])
    assert len(rows(grid(pair, sample.sprite, ["linear 1/4"], "another"))) == 2


def test_without_pictures_there_is_no_grid() -> None:
    with pytest.raises(NothingMeasured, match="No pictures"):
        grid(sample.random_weights(), sample.sprite)
