"""Names in registries, outcomes, shares in words, and files that appear whole or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.core.files import replacing
from cachemark.core.registry import Registry
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.core.wording import percent
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import CATALOGUE, MODELS


def test_built_in_things_have_the_names_under_which_they_are_listed() -> None:
    assert all(METHODS.get(name).name == name for name in METHODS)
    assert {name: DECODERS.get(name).name for name in DECODERS} == {name: name for name in ("jacobi", "scd", "sequential", "sjd", "zipar")}
    assert all({MODELS.get(name).name for name in names} == set(names) for names in CATALOGUE.values())


def test_a_built_in_name_is_taken_before_its_file_is_imported() -> None:
    table: Registry[type] = Registry("thing", object, classes=True, built_in={"mine": "cachemark.nowhere"})
    with pytest.raises(BadPlugin, match=r"already registered by cachemark\.nowhere"):
        table.add("mine")(type("Mine", (), {}))


@pytest.mark.parametrize("name", ["<b>mine</b>", "a & b", 'mine"', "mi|ne", "`mine`", "mi\nne", " mine", "", "x" * 101])
def test_a_name_is_printable_text_without_markup(name: str) -> None:
    with pytest.raises(BadPlugin, match="is not a valid name of a thing"):
        Registry("thing").add(name)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 10**400])
def test_a_figure_that_no_float_holds_is_refused(value: float) -> None:
    case = Case("tiny-llamagen", "ab" * 32, (8, 8), "10 classes, balanced", Sampling(), "full")
    with pytest.raises(ValueError, match="finite samples only: latency"):
        Outcome(case, Status.OK, {"latency": [1.0, value]}, "timed only")


@pytest.mark.parametrize(("share", "sign", "text"), [
    (0.0512, "+", "+5.1 %"), (-0.001, "+", "-0.1 %"), (0.0512, "", "5.1 %"), (0.1, "+", "+10 %"), (0.0, "", "0 %"), (0.0017, "", "0.17 %"),
    (1.0, "", "100 %"), (1.5, "+", "+150 %"), (0.996, "", "100 %"), (0.994, "", "99 %"), (123.456, "+", "+12346 %"), (-1.0, "+", "-100 %"),
    (1e-9, "+", "+0 %"), (-1e-9, "+", "+0 %"), (1e-6, "", "0.0001 %"),
])  # fmt: skip
def test_a_share_in_per_cent_has_two_digits_and_never_an_exponent(share: float, sign: str, text: str) -> None:
    assert percent(share, sign) == text


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with replacing(path) as part:
        part.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path) as part:
        part.with_name("elsewhere").read_text()
    assert path.read_text() == "old"
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
