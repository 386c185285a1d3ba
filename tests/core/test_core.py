"""Names in registries, outcomes, labels, files that appear whole or not at all, definitions of plug-in metrics, and git in a folder."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cachemark.analysis.report_row import rows_of
from cachemark.core import units
from cachemark.core.errors import BadPlugin, CachemarkError, UnknownName
from cachemark.core.files import replacing
from cachemark.core.git import commit_of, git, run_git
from cachemark.core.outside_metrics import KEY, fault_of, full_name, know
from cachemark.core.registry import Registry
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling, shown_label, shown_share
from cachemark.core.wording import percent
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import CATALOGUE, MODELS
from cachemark.workflows.git import BAD, GOOD, search
from cachemark.workflows.results import outcomes_of
from support import repositories

CASE = Case("tiny", "random:0", (8, 8), "10 classes, balanced", Sampling(), "linear", budget="1019/1644")
SAME = ("1", "1/4", "1/6", "5/8", "1/16", "1/3", "no number", "1/0")
SAME_LABELS = ("linear 1/4", "full (other seeds)", "linear 0.62", "a/7/300", "x 3/0")
STATED = {"title": "Contrast", "unit": "", "better": "lower", "kind": "quality", "per": "image", "meaning": "How grey an image is.",
          "within": [0.0, None], "deterministic": True, "code": "0123456789ab"}  # fmt: skip
NAME = full_name("contrast", STATED)


def test_names_are_those_listed_taken_before_their_files_are_imported_and_without_markup() -> None:
    assert all(method.name == name and method.source and method.__doc__ for name, method in ((name, METHODS.get(name)) for name in METHODS))
    assert {name: DECODERS.get(name).name for name in DECODERS} == {name: name for name in ("jacobi", "scd", "sequential", "sjd", "zipar")}
    assert all({MODELS.get(name).name for name in names} == set(names) for names in CATALOGUE.values())
    table: Registry[type] = Registry("thing", object, classes=True, built_in={"mine": "cachemark.nowhere"})
    with pytest.raises(BadPlugin, match=r"already registered by cachemark\.nowhere"):
        table.add("mine")(type("Mine", (), {}))
    for name in ("<b>mine</b>", "a & b", 'mine"', "mi|ne", "`mine`", "mi\nne", " mine", "", "x" * 101):
        with pytest.raises(BadPlugin, match="is not a valid name of a thing"):
            Registry("thing").add(name)


SHARES = (
    (0.0512, "+", "+5.1 %"), (-0.001, "+", "-0.1 %"), (0.0512, "", "5.1 %"), (0.1, "+", "+10 %"), (0.0, "", "0 %"), (0.0017, "", "0.17 %"),
    (1.0, "", "100 %"), (1.5, "+", "+150 %"), (0.996, "", "100 %"), (0.994, "", "99 %"), (123.456, "+", "+12346 %"), (-1.0, "+", "-100 %"),
    (1e-9, "+", "+0 %"), (-1e-9, "+", "+0 %"), (1e-6, "", "0.0001 %"))  # fmt: skip


def test_a_share_in_per_cent_has_two_digits_and_never_an_exponent_and_a_figure_that_no_float_holds_is_refused() -> None:
    assert [percent(share, sign) for share, sign, _ in SHARES] == [text for _, _, text in SHARES]
    for value in (math.nan, -math.inf, 10**400):
        with pytest.raises(ValueError, match="finite samples only: latency"):
            Outcome(CASE, Status.OK, {"latency": [1.0, value]}, "timed only")


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


def test_a_budget_is_shown_as_people_read_it_and_either_spelling_finds_the_case() -> None:
    assert [*map(shown_share, SAME)] == [*SAME]
    for budget, shown in {"1019/1644": "0.62", "647/1272": "0.509", "51/100": "0.51", "1/1000": "0.001"}.items():
        assert shown_share(budget) == shown
    assert [*map(shown_label, SAME_LABELS)] == [*SAME_LABELS]
    for name, shown in {"linear 1019/1644": "linear 0.62", "tiny linear 1019/1644 int8, batch 16": "tiny linear 0.62 int8, batch 16",
                        "a window 647/1272 → h2o 1019/1644": "a window 0.509 → h2o 0.62"}.items():
        assert shown_label(name) == shown
    assert (CASE.label, CASE.to_json()["budget"], CASE.key) == ("linear 0.62", "1019/1644", "ef47d157991a6f59")
    outcomes = [Outcome(case, Status.NOT_REACHED, log="stopped") for case in (CASE, replace(CASE, budget="1/4"))]
    for name in ("linear 1019/1644", "linear 0.62"):
        assert [outcome.case for outcome in outcomes_of(name, outcomes)] == [CASE]
    with pytest.raises(UnknownName):
        outcomes_of("linear 1020/1645", [outcomes[1]])


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with patch.dict(units.OUTSIDE, clear=True):
        yield


def test_a_reader_knows_the_metric_from_the_case_if_its_definition_matches_its_name() -> None:
    case = replace(CASE, weights="given", evaluation={KEY: {NAME: STATED}})
    kept = json.dumps(Outcome(case, Status.OK, {NAME: [1.0, 2.0, 4.0]}).to_json())
    units.OUTSIDE.clear()
    with pytest.raises(UnknownName):
        units.metric(NAME)
    outcome = Outcome.from_json(json.loads(kept))
    known = units.metric(NAME)
    assert (known.better, known.kind, known.within, known.deterministic) == ("lower", "quality", (0.0, float("inf")), True)
    assert known.loss(then=1.0, now=2.0) == 1.0
    full = replace(outcome, case=replace(outcome.case, method="full", role="baseline"), samples={NAME: [1.0, 1.0, 1.0]})
    (row,) = rows_of([outcome], full)
    assert row.quality[NAME].value == pytest.approx(7 / 3)
    assert row.to_full[NAME].value == pytest.approx(4 / 3)
    for changes in ({"code": "ba9876543210"}, {"better": "higher"}, {"within": [0.0, 1.0]}, {"meaning": "Another."}):
        assert full_name("contrast", {**STATED, **changes}) != NAME
    units.OUTSIDE.clear()
    know({KEY: {NAME: {**STATED, "better": "higher"}}})
    assert not units.OUTSIDE


@pytest.mark.parametrize(("name", "changes", "fault"), [
    ("Contrast", {}, "small letters"), ("color_consistency", {}, "of cachemark itself"), ("fid_mine", {}, "of cachemark itself"),
    ("contrast", {"kind": "speed"}, "kind"), ("contrast", {"better": "more"}, "better"),
    ("contrast", {"better": ""}, "has better = '', not 'lower' or 'higher'; where neither is better, measure the distance"),
    ("contrast", {"title": "<b>"}, "title"), ("contrast", {"title": ""}, "title"), ("contrast", {"meaning": ""}, "docstring"),
    ("contrast", {"within": [1, 0]}, "within"), ("contrast", {"within": [0, float("nan")]}, "within"),
    ("contrast", {"within": [-1.7e308, 1.7e308]}, "within")])  # fmt: skip
def test_what_is_no_definition_is_told(name: str, changes: dict[str, Any], fault: str) -> None:
    assert fault_of("contrast", STATED) == ""
    assert fault in fault_of(name, {**STATED, **changes})


def test_far_ends_are_a_range_while_differences_are_finite_and_seconds_of_an_image_are_no_wall_time() -> None:
    """Pairs are judged by medians over processes of wall times, where a value of images has one for each seed."""
    for changes in ({"within": [-4e307, 4e307]}, {"unit": "s"}):
        stated = {**STATED, **changes}
        name = full_name("contrast", stated)
        know({KEY: {name: stated}})
        assert not units.metric(name).timed
        assert "unit" in changes or all(map(math.isfinite, units.OUTSIDE[name].apart))
    assert {of.name for of in units.METRICS.values() if of.timed} >= {"latency", "capture_seconds", "throughput"}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("other"))


def repository(folder: Path, *options: str) -> Path:
    repositories.git(folder, "init", "-q", "-b", "main", *options)
    for number in range(5):
        repositories.git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
    return folder


@pytest.mark.parametrize("variables", [("GIT_DIR",), ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"), ("GIT_COMMON_DIR", "GIT_DIR"), ()])
@pytest.mark.parametrize("format_", ["sha1", "sha256"])
def test_the_folder_alone_selects_the_repository(
    variables: tuple[str, ...], format_: str, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a hook of another project, whose HEAD stays."""
    folder = repository(tmp_path, f"--object-format={format_}")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    commits = git(folder, "rev-list", "--reverse", "main").split()
    places = {"GIT_DIR": other / ".git", "GIT_COMMON_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git/index"}
    heads = [repositories.git(place, "log", "-1", "--format=%H %D") for place in (folder, other)]
    with monkeypatch.context() as patched:
        for variable in variables:
            patched.setenv(variable, str(places[variable]))
        first, _ = search(folder, commits[0], commits[-1], lambda _, commit: BAD if commits.index(commit) >= 3 else GOOD)
    assert first == commits[3]
    assert [repositories.git(place, "log", "-1", "--format=%H %D") for place in (folder, other)] == heads


@pytest.mark.parametrize(("variables", "depth", "reason"), [
    ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, 9, r"owner is another user.*safe\.directory"),
    ({"PATH": "/nonexistent"}, 9, r"git is not installed"), ({}, 2, r"shallow clone.*--unshallow"), ({}, 0, r"is not in a git repository"),
    ({}, 9, r"has no commit 'main~9'\. Use a commit of that repository")])  # fmt: skip
def test_reasons_of_a_missing_commit_are_told_apart(
    variables: dict[str, str], depth: int, reason: str, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if depth:
        repositories.git(other, "clone", "-q", "--depth", str(depth), f"file://{other}", str(tmp_path / "clone"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CachemarkError, match=reason):
        commit_of(tmp_path / "clone" if depth else tmp_path, "main~9" if depth == 9 else "main~3")


def test_ends_apart_in_a_shallow_clone_name_it(other: Path, tmp_path: Path) -> None:
    old, new = git(other, "rev-parse", "main~3", "main").split()
    repositories.git(tmp_path, "init", "-q")
    repositories.git(tmp_path, "-c", "uploadpack.allowAnySHA1InWant=true", "fetch", "-q", "--depth", "1", f"file://{other}", "main")
    repositories.git(other, "tag", "-f", "old", old)
    repositories.git(tmp_path, "fetch", "-q", "--depth", "1", f"file://{other}", "tag", "old")
    with pytest.raises(CachemarkError, match=r"not an ancestor.*--unshallow"):
        search(tmp_path, old, new, lambda *_: GOOD)
    assert run_git(tmp_path, "status").returncode == 0
