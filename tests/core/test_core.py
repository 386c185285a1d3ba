"""Names in registries, outcomes, shares and labels in words, and files that appear whole or not at all."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin, UnknownName
from cachemark.core.files import replacing
from cachemark.core.registry import Registry
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling, shown_label, shown_share
from cachemark.core.wording import percent
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import CATALOGUE, MODELS
from cachemark.workflows.results import outcomes_of


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


# -- labels -----------------------------------------------------------------------------------------------------------
CASE = Case("tiny", "random:0", (8, 8), "10 classes, balanced", Sampling(), "linear", budget="1019/1644")


def test_a_budget_is_shown_as_people_read_it_in_labels_of_any_spelling() -> None:
    for budget, shown in {"1019/1644": "0.62", "647/1272": "0.509", "51/100": "0.51", "1/1000": "0.001", **{
            same: same for same in ("1", "1/4", "1/6", "5/8", "1/16", "1/3", "no number", "1/0")}}.items():
        assert shown_share(budget) == shown
    for name, shown in {"linear 1019/1644": "linear 0.62", "tiny linear 1019/1644 int8, batch 16": "tiny linear 0.62 int8, batch 16",
                        "a window 647/1272 → h2o 1019/1644": "a window 0.509 → h2o 0.62", **{
            same: same for same in ("linear 1/4", "full (other seeds)", "linear 0.62", "a/7/300", "x 3/0")}}.items():
        assert shown_label(name) == shown


def test_a_label_shows_the_decimal_and_the_key_keeps_the_fraction() -> None:
    assert CASE.label == "linear 0.62"
    assert CASE.to_json()["budget"] == "1019/1644"
    assert CASE.key == "ef47d157991a6f59"


@pytest.mark.parametrize("name", ["linear 1019/1644", "linear 0.62"])
def test_a_case_is_found_by_either_spelling(name: str) -> None:
    outcomes = [Outcome(case, Status.NOT_REACHED, log='stopped') for case in (CASE, replace(CASE, budget="1/4"))]
    assert [outcome.case for outcome in outcomes_of(name, outcomes)] == [CASE]
    with pytest.raises(UnknownName):
        outcomes_of("linear 1020/1645", [outcomes[1]])
