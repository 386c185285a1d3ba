"""Tokens per second of both halves, from the times of tokens."""


from cachemark.cache.layout import Layout, squares
from cachemark.metrics.base import Costs
from cachemark.metrics.compute.speed import first_half, watched
from cachemark.metrics.registry import cost_values

VAR = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)


def raster(lines: int, line: int) -> Layout:
    return Layout("next-token", (1,), lines, line, 1, 1, 1, 1)


def scales(*sides: int) -> Layout:
    return Layout("next-scale", (0,), 0, 0, 1, 1, 1, 1, scales=squares(sides))


def test_halves_are_divided_at_the_boundary_nearest_to_the_middle_by_watched_tokens() -> None:
    for marks, layout, batch, rates in (
        ({7: 2.0, 15: 10.0}, raster(4, 4), 3, (8 * 3 / 2.0, 8 * 3 / 8.0)),
        ({3: 0.1, 7: 2.0, 11: 9.9, 15: 10.0}, raster(4, 4), 3, (8 * 3 / 2.0, 8 * 3 / 8.0)),  # other marks do not count
        ({1: 1.0, 4: 4.0}, raster(1, 5), 1, (2.0, 1.0)),  # of an odd number of tokens, the longer half is the last
        ({0: 0.5, 4: 1.0, 13: 4.0}, scales(1, 2, 3), 2, (5 * 2 / 1.0, 9 * 2 / 3.0)),
    ):
        figures = cost_values(Costs(batch, layout.visual, first_half(layout), [max(marks.values())], [marks]))
        assert (figures["tokens_per_s_first"][0], figures["tokens_per_s_last"][0]) == rates
    for layout, expected in (
        (raster(4, 4), [3, 7, 11, 15]), (raster(3, 3), [2, 3, 5, 8]),  # the half ends inside a line
        (scales(1, 2, 3), [0, 4, 13]),
    ):
        assert watched(layout) == expected
    for sides, expected in (
        (VAR, 424),  # of 680: 340 lies between 255 and 424, and 424 is nearer by one
        ((1, 2, 3, 4, 6, 8, 12, 16), 274), ((1, 2, 3), 5), ((1, 1, 2), 2), ((2, 2), 4),
        ((1, 2, 1), 5),  # of 6: 1 and 5 are both two away from 3, and the later one divides
    ):
        assert first_half(scales(*sides)) == expected
