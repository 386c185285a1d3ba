"""Infinity's aspect ratios: the published table, positions and maps that are not square, and how a user asks for one."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

import cachemark as cm
from cachemark.core.errors import BadCalibration, BadPlan
from cachemark.models import infinity
from cachemark.models.catalogue import text_to_image
from cachemark.models.infinity_scales import COUNTS, RATIOS, schedules
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.bsq import BitQuantizer, BSQConfig, bits_of, packed_bits
from cachemark.plans import schema
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.request import TrialRequest
from cachemark.workflows.calibrate import calibrate

NAME, GRID = "infinity-2b-256", (20, 15)
SCALES = ((1, 1), (2, 2), (4, 3), (8, 6), (12, 9), (16, 12), (20, 15))  # of 4:3, in the authors' table
TOKENS = 1 + 4 + 12 + 48 + 108 + 192 + 300


def test_the_maps_are_those_of_the_authors_table() -> None:
    for ratio, *sums in (  # over the authors' maps, in another transcript: tokens, rows, columns
        (1.25, 10774, 316, 254), (1.333, 10973, 331, 249), (1.5, 10997, 345, 231), (1.75, 11252, 374, 216), (2.0, 11269, 399, 201),
        (2.5, 10805, 443, 179), (3.0, 11123, 489, 165)):
        rows, columns = zip(*RATIOS[ratio], strict=True)
        assert (sum(a * b for a, b in RATIOS[ratio]), sum(rows), sum(columns)) == tuple(sums)
        assert tuple(zip(columns, rows, strict=True)) in RATIOS.values(), "the wide one beside the tall one"
    assert len(RATIOS) == 15
    assert schedules(256)[GRID] == (SCALES, (72, 54))
    assert [len(schedules(pixels)) for pixels in COUNTS] == [15] * 4
    square = [sum(rows * columns for rows, columns in next(iter(schedules(pixels).values())).scales) for pixels in COUNTS]
    assert square == [521, 2521, 6425, 10521]


def test_positions_and_maps_that_are_not_square_are_those_of_the_finest_map() -> None:
    table = infinity.rope_table(8, SCALES, (72, 54), 10000.0, torch.device("cpu")).split([rows * columns for rows, columns in SCALES])
    for (rows, columns), turns in zip(SCALES, table, strict=True):
        for place, turn in enumerate(turns):
            row, column = round(Fraction(place // columns * 72, rows)), round(Fraction(place % columns * 54, columns))
            angles = [at * 10000.0 ** (-exponent / 4) for at in (row, column) for exponent in (0, 2)]
            torch.testing.assert_close(turn, torch.polar(torch.ones(4), torch.tensor(angles)), rtol=0, atol=1e-5)
    quantizer = BitQuantizer(((1, 1), (2, 3)), 3, patch=2)
    tokens = torch.randint(0, 2**12, (2, 7), generator=torch.Generator().manual_seed(3))
    codes = quantizer.codes(tokens[:, 1:], 1)
    assert codes.shape == quantizer.restore(tokens).shape == (2, 3, 4, 6)
    assert codes.abs().unique().tolist() == pytest.approx([3**-0.5])
    assert torch.equal(packed_bits(quantizer.next_map(codes, 1) > 0), tokens[:, 1:])
    bits = bits_of(tokens[:, 1 + 1 * 3 + 2], 12).view(2, 3, 2, 2)  # of the token in row 1 and column 2
    assert torch.equal((codes[:, :, 2:, 4:] > 0).long(), bits)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A published name at reduced sizes, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(infinity.SIZES, "2B", infinity.InfinityConfig(4, 2, 32, chunks=2, width=5, text=128, longest=120))
    monkeypatch.setitem(text_to_image.INFINITY_TOKENIZERS, "2B", BSQConfig(32, (1, 1), 1, z=5))
    MODELS.get(NAME)
    monkeypatch.setitem(MODELS._entries, NAME, text_to_image.infinity_model("2B", 256).entry)
    return NAME


def planned(folder: Path, grid: str, methods: str = '["streaming"]') -> list[Prepared]:
    (folder / "wide.toml").write_text(f'name = "wide"\n[[cells]]\nmodel = "{NAME}"\n{grid}\nmethods = {methods}\nbatch = 2\n')
    return [Prepared.of(case) for case in expand(schema.load(str(folder / "wide.toml")))]


def test_a_plan_names_a_grid_of_the_table_and_the_square_one_is_the_default(small: str, tmp_path: Path) -> None:
    wide, square, named = (planned(tmp_path, grid) for grid in ("grid = [20, 15]", "", "grid = [16, 16]"))
    assert {case.case.grid for case in wide} == {GRID}
    assert [case.case.key for case in named] == [case.case.key for case in square] != [case.case.key for case in wide]
    assert wide[0].entry.shape(wide[0].case.sampling, 2).visual == TOKENS
    sent = [TrialRequest(cases=tuple(cases)).to_json()["cases"] for cases in (wide, square)]
    assert ["grid" in case["request"] for cases in sent for case in cases] == [True] * len(wide) + [False] * len(square)
    again = TrialRequest.from_json(TrialRequest(cases=tuple(wide)).to_json()).cases
    assert [case.request for case in again] == [case.request for case in wide]
    assert again[0].entry.grid == GRID
    with pytest.raises(BadPlan, match=r"wide.toml:4: infinity-2b-256 has no images of 15×21 tokens") as raised:
        planned(tmp_path, "grid = [15, 21]")
    assert raised.value.remedy == "Use a grid that it has; the nearest by aspect ratio: 15×20, 14×21, 16×20."
    with pytest.raises(BadPlan, match=r"tiny-var has no images of 8×16 tokens"):
        MODELS.get("tiny-var").of_grid((8, 16))


def test_a_generation_has_the_grid_of_its_request_asked_for_in_any_order(small: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("red star\nblue star\n")
    entry = MODELS.get(small).for_request(Request(prompts=str(tmp_path / "two.txt"), grid=GRID))
    assert (entry.prompts, entry.grid, entry.of_grid(GRID)) == (("red star", "blue star"), GRID, entry)
    other = MODELS.get(small).for_request(Request(prompts=str(tmp_path / "two.txt"))).of_grid(GRID)
    assert (other.prompts, other.grid) == (entry.prompts, entry.grid)
    model = cm.load(small)
    square = model.generate(prompts="red star", seeds=[3])
    wide = model.generate(prompts="red star", seeds=[3, 4], grid=GRID)
    assert (tuple(wide.images.shape), tuple(wide.tokens.shape), wide.case.grid) == ((2, 3, 40, 30), (2, TOKENS), GRID)
    wide.save(tmp_path / "wide.png")
    with Image.open(tmp_path / "wide.png") as picture:
        assert picture.size == (60, 40)
    assert torch.equal(model.generate(prompts="red star", seeds=[3]).tokens, square.tokens), "the square one again"
    assert not torch.equal(model.generate(prompts="red star", seeds=[3], grid=GRID[::-1]).tokens, wide.tokens[:1])


def test_a_calibration_is_of_the_maps_of_one_grid(small: str) -> None:
    square = calibrate("hack", small, samples=1)
    with pytest.raises(BadCalibration, match="of another model or resolution"):
        cm.load(small).generate(prompts="red star", method="hack", budget="1/2", grid=GRID, calibration=square.digest)
    assert calibrate("hack", small, samples=1, grid=GRID).path.name == square.path.name.replace(".json", "-20x15.json")
    image = cm.load(small).generate(prompts="red star", grid=GRID, method="hack")
    assert (image.tokens.shape, image.images.shape) == ((1, TOKENS), (1, 3, 40, 30))
