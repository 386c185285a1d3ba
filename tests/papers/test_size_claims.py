"""Published sizes of a KV cache: those that follow, by formulas written out here, those that do not, and what ours allocates."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from benchmarks.papers import size_claims as module
from benchmarks.papers.published_sizes import UNITS, PublishedSize, published
from benchmarks.papers.size_claims import SizeClaim, size_claims
from cachemark.models.registry import MODELS

SIZES = {"infinity-2b": (32, 2048), "infinity-8b": (40, 3584)}  # layers and width
ALL, READ = 10521, 6425  # tokens of an image, and those before the last scale
FOLLOWING = [  # paper, table, model, images, printed, tokens that are kept
    *(("ScaleKV", "Table 1", model, 8, printed, tokens) for model, sizes in (("infinity-2b", ("38550", "7800", "3900", "1590")),
                                                                            ("infinity-8b", ("84328", "17062", "8531", "3478")))
      for printed, tokens in zip(sizes, (READ, 1300, 650, 265), strict=True)),
    ("ScaleKV", "Table 3", "infinity-8b", 1, "10.5", READ), ("ScaleKV", "Table 3", "infinity-8b", 1, "1.1", 650),
    ("ScaleKV", "Table 3", "infinity-8b", 8, "8.5", 650), ("ScaleKV", "Table 3", "infinity-8b", 16, "17.1", 650),
    ("HeatKV", "Figure 1", "infinity-8b", 4, "42", READ), ("HACK++", "main text", "infinity-8b", 1, "16.86", ALL),
    ("HACK++", "main text", "infinity-8b", 1, "1.69", ALL // 10), ("HACK++", "main text", "infinity-8b", 1, "0.17", ALL // 100),
]  # fmt: skip
GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "methods.md"


@cache
def claims(model: str) -> list[SizeClaim]:
    return size_claims(MODELS.get(model), torch.float16)


def claim(model: str, paper: str, table: str, printed: str) -> SizeClaim:
    (result,) = [item for item in claims(model) if (item.paper, item.table, item.printed) == (paper, table, printed)]
    return result


def reprinted(figure: PublishedSize, other: PublishedSize) -> SizeClaim:
    """The claim that one value would be if it were printed as another."""
    entry = MODELS.get(figure.model)
    image, figures = entry.shape(entry.presets["paper"], 1), [other if row == figure else row for row in published(figure.model)]
    return module._claim(other, module._accountings(other, figures, image), image, torch.float16, entry)


@pytest.mark.parametrize(("paper", "table", "model", "images", "printed", "tokens"), FOLLOWING)
def test_a_size_follows_from_tokens_layers_width_two_rows_and_six_bytes(
    paper: str, table: str, model: str, images: int, printed: str, tokens: int,
) -> None:
    layers, width = SIZES[model]
    size = tokens * layers * width * 2 * 6 * images
    size_claim = claim(model, paper, table, printed)
    by = "" if size_claim.batch else f" by {images} image{'s' if images > 1 else ''}"
    texts = f"reproduced{by}: {size:,} bytes, {size / UNITS[size_claim.means]:.3f} in {size_claim.means}, with K in fp32, V in 16 bit"
    assert size_claim.finding.startswith(texts)
    assert (", all scales kept" in size_claim.finding) == (tokens == ALL)
    assert (", without the last scale" in size_claim.finding) == (tokens == READ)
    assert size_claim.allocated.images == images


def test_heatkv_keeps_no_more_than_a_twentieth() -> None:
    """Whole scales and heads are dropped, so a little less than its limit lives."""
    layers, width = SIZES["infinity-8b"]
    size_claim = claim("infinity-8b", "HeatKV", "Figure 1", "2.1")
    size = int(re.findall(r"reproduced by 4 images: ([\d,]+) bytes", size_claim.finding)[0].replace(",", ""))
    assert 0.98 < size / (READ * layers * width * 2 * 6 * 4 / 20) <= 1


def test_every_size_of_the_newer_papers_is_checked_here() -> None:
    following = {(paper, table, model, printed) for paper, table, model, _, printed, _ in FOLLOWING}
    all_sizes = {(item.paper, item.table, model, item.printed) for model in SIZES for item in claims(model) if item.paper != "AMS-KV"}
    assert following < all_sizes
    assert {printed for *_, printed in all_sizes - following} == {"85", "170", "2.1"}


@pytest.mark.parametrize("model", ["infinity-2b", "infinity-8b", "var-d30", "var-d36-512"])
def test_a_size_changed_by_one_in_its_last_digit_does_not_follow(model: str) -> None:
    """Changed away from what it rounds or cuts off."""
    follow = [(item, result.finding) for item, result in zip(published(model), claims(model), strict=True)
              if result.finding.startswith("reproduced")]
    assert follow
    if model.startswith("var-"):
        assert [item for item, _ in follow] == [item for item in published(model) if item.method == "full"], "and none of AMS-KV"
    for item, finding in follow:
        exact, digits = float(re.findall(r"([\d.]+) in ", finding)[0]), len(item.printed.partition(".")[2])
        step = 10**-digits if float(item.printed) > exact else -(10**-digits)
        other = replace(item, printed=f"{float(item.printed) + step:.{digits}f}")
        assert reprinted(item, other).finding.startswith("not reproduced"), (item.printed, other.printed)


def test_a_full_cache_follows_in_no_other_unit() -> None:
    full = [item for item in published("infinity-8b") if item.method == "full"]
    follow = [item for item in full if not item.batch or item.printed in {"84328", "10.5"}]
    assert len(follow) == 4
    for item in follow:
        for unit in UNITS.keys() - {item.means}:
            assert reprinted(item, replace(item, means=unit)).finding.startswith("not reproduced"), (item.printed, unit)


def test_a_size_without_a_batch_may_follow() -> None:
    layers, width = SIZES["infinity-2b"]
    item = ALL * layers * width * 2 * 6
    full = published("infinity-2b")[0]
    result = reprinted(full, replace(full, printed=f"{3 * item / UNITS[full.means]:.2f}"))
    assert result.finding.startswith(f"reproduced by 3 images: {3 * item:,} bytes, ")
    assert result.allocated.images == 3


@pytest.mark.parametrize(("model", "paper", "table", "printed", "images", "percent"), [
    ("infinity-2b", "ScaleKV", "Table 1", "7800", 8, 20), ("infinity-2b", "ScaleKV", "Table 1", "3900", 8, 10),
    ("infinity-8b", "ScaleKV", "Table 1", "3478", 8, 4), ("infinity-8b", "ScaleKV", "Table 3", "17.1", 16, 10),
    ("infinity-8b", "HeatKV", "Figure 1", "2.1", 4, 5), ("infinity-8b", "HACK++", "main text", "1.69", 1, 10),
    ("infinity-8b", "HACK++", "main text", "0.17", 1, 1),
])
def test_ours_allocates_what_the_guide_says_of_an_image(
    model: str, paper: str, table: str, printed: str, images: int, percent: int,
) -> None:
    method = {"ScaleKV": "scalekv", "HeatKV": "heatkv", "HACK++": "hackpp"}[paper]
    (megabytes,) = re.findall(rf"^\| `{method}` \| `{model}` \| {percent} %.*\| ([\d.]+) MB \|$", GUIDE.read_text(encoding="utf-8"), re.M)
    size_claim = claim(model, paper, table, printed).allocated
    assert f"{size_claim.bytes / images / 1e6:.0f}" == megabytes
    assert size_claim.published_in_unit == pytest.approx(1.5 * size_claim.in_unit)
