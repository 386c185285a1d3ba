"""The harness itself: it runs what it finds, and says so when it cannot."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from . import test_vectors
from .checks import Check, Vector, apart, compressed, differing_bytes
from .discovery import DEFAULT, Item, find, kind_of
from .readers import FAMILIES

GOLDEN = DEFAULT / "llamagen" / "golden_small_vq"


def placed(folder: Path, *names: str) -> Path:
    """Copies of the golden tokenizer vectors under other names."""
    for name in names:
        target = folder / f"{name}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(GOLDEN.with_suffix(".safetensors"), target)
        shutil.copy(GOLDEN.with_suffix(".json"), target.with_suffix(".json"))
    return folder


def problems(folder: Path) -> list[str]:
    return [item.problem for item in find(folder) if item.problem]


@pytest.mark.parametrize(("name", "kind"), [
    ("golden_small", "small"), ("heldout_small_vq", "small_vq"), ("a_vae_decoder", "vae_decoder"), ("small", ""),
])
def test_the_kind_follows_the_first_underscore(name: str, kind: str) -> None:
    assert kind_of(Path(f"{name}.safetensors")) == kind


def test_every_check_of_every_file_is_found(tmp_path: Path) -> None:
    items = find(placed(tmp_path, "llamagen/golden_small_vq", "llamagen/heldout_small_vq"))
    checks = [check.name for check in FAMILIES["llamagen"]["small_vq"].checks]
    expected = [f"llamagen-{stem}_small_vq-{check}" for stem in ("golden", "heldout") for check in checks]
    assert [item.label for item in items] == expected
    assert not any(item.problem or item.lacking for item in items)


def test_the_vectors_of_the_project_get_every_check() -> None:
    items = find(DEFAULT)
    assert {item.path.stem for item in items} == {path.stem for path in DEFAULT.rglob("*.json")}
    assert not [item for item in items if item.problem or item.lacking]


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_found_is_a_problem(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path if exists else tmp_path / "absent"
    assert len(find(folder)) == 1
    assert "No vectors under" in problems(folder)[0]


def test_links_are_followed(tmp_path: Path) -> None:
    """A linked family, a linked file, and a link that leads back up."""
    placed(tmp_path / "elsewhere", "family/golden_small_vq")
    folder = tmp_path / "vectors"
    (folder / "mar").mkdir(parents=True)
    (folder / "llamagen").symlink_to(tmp_path / "elsewhere" / "family")
    (folder / "mar" / "up").symlink_to(folder)
    for path in (DEFAULT / "mar").glob("golden_vae_decoder.*"):
        (folder / "mar" / path.name).symlink_to(path)
    assert {item.path.relative_to(folder).as_posix() for item in find(folder)} == {
        "llamagen/golden_small_vq.safetensors", "mar/golden_vae_decoder.safetensors"}
    assert not problems(folder)


@pytest.mark.parametrize(("name", "text"), [
    ("llamagan/golden_small_vq", "Unknown family 'llamagan'. Did you mean 'llamagen'?"),
    ("llamagen/golden_smal_vq", "Unknown kind of llamagen vector 'smal_vq'. Did you mean 'small_vq'?"),
    ("llamagen/golden", "Unknown kind of llamagen vector ''."),
    ("golden_small_vq", "folder named as their family"),
    ("llamagen/deeper/golden_small_vq", "folder named as their family"),
])
def test_what_cannot_be_placed_is_a_problem(tmp_path: Path, name: str, text: str) -> None:
    found = problems(placed(tmp_path, name))
    assert len(found) == 1
    assert text in found[0]


@pytest.mark.parametrize("content", [None, "{", "\x00"])
def test_a_missing_or_broken_configuration_is_a_problem(tmp_path: Path, content: str | None) -> None:
    beside = placed(tmp_path, "llamagen/golden_small_vq") / "llamagen" / "golden_small_vq.json"
    beside.unlink()
    if content is not None:
        beside.write_text(content)
    assert "golden_small_vq.json cannot be read" in problems(tmp_path)[0]


def test_a_damaged_file_is_a_problem(tmp_path: Path) -> None:
    path = placed(tmp_path, "llamagen/golden_small_vq") / "llamagen" / "golden_small_vq.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be read" in problems(tmp_path)[0]


def test_a_compressed_file_counts_once_and_as_the_plain_one(tmp_path: Path) -> None:
    path = placed(tmp_path, "llamagen/golden_small_vq") / "llamagen" / "golden_small_vq.safetensors"
    plain = find(tmp_path)
    compressed(path).write_bytes(lzma.compress(path.read_bytes()))
    assert find(tmp_path) == plain
    path.unlink()
    assert find(tmp_path) == plain
    assert Vector.load(path).tensors.keys() == Vector.load(GOLDEN.with_suffix(".safetensors")).tensors.keys()
    compressed(path).write_bytes(b"of no archive")
    assert "cannot be read" in problems(tmp_path)[0]


def test_a_check_without_its_tensors_is_skipped_by_name(tmp_path: Path) -> None:
    path = placed(tmp_path, "llamagen/golden_small_vq") / "llamagen" / "golden_small_vq.safetensors"
    save_file({name: t for name, t in load_file(path).items() if name != "quant"}, path)
    assert {item.check.name: item.lacking for item in find(tmp_path) if item.lacking and item.check} == {"code_vectors": "quant"}
    save_file({"input/codes": torch.zeros(1)}, path)
    assert "no check can be run" in problems(tmp_path)[0]


# -- measures ---------------------------------------------------------------------------------------------------------
def test_what_cannot_be_compared_is_infinitely_far() -> None:
    assert apart(torch.zeros(2), torch.zeros(1, 2)) == float("inf")
    assert differing_bytes(torch.zeros(2), torch.zeros(2, dtype=torch.uint8)) == float("inf")
    assert apart(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.0])) == 0.5


def test_a_byte_may_differ_by_one() -> None:
    expected = torch.tensor([0, 1, 255, 7], dtype=torch.uint8)
    assert differing_bytes(expected, expected) == 0
    assert differing_bytes(torch.tensor([0, 2, 254, 7], dtype=torch.uint8), expected) == 0.5
    assert differing_bytes(torch.tensor([0, 3, 255, 7], dtype=torch.uint8), expected) == float("inf")
    assert differing_bytes(torch.tensor([255, 1, 255, 7], dtype=torch.uint8), expected) == float("inf")


@pytest.mark.parametrize(("deviation", "wrong"), [(0.0, False), (0.1, False), (0.2, True), (float("nan"), True), (float("inf"), True)])
def test_not_a_number_is_a_fault(deviation: float, wrong: bool) -> None:
    vector = Vector(GOLDEN, {}, {})
    assert bool(Check("x", 0.1, lambda *_: deviation, ()).fault(None, vector)) is wrong


# -- the command ------------------------------------------------------------------------------------------------------
def test_a_problem_fails_and_a_lack_skips() -> None:
    with pytest.raises(pytest.fail.Exception, match="the reason"):
        test_vectors.test_vector(Item("x", GOLDEN, problem="the reason"))
    with pytest.raises(pytest.skip.Exception, match="holds no quant"):
        test_vectors.test_vector(Item("x", GOLDEN, lacking="quant"))


TESTS = Path(__file__).with_name("test_vectors.py")


def command(folder: Path, *options: str) -> int:
    """The exit code of the command for a folder, run in this process: importing everything in another one takes longer than all checks."""
    return pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-q", *options, "--vectors", str(folder)])


def test_the_command_checks_the_given_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("llamagen/heldout_small_vq", "llamagen/wrong_small_vq", "llamagen/broken_small_vq", "pixart/golden_small")
    path = placed(tmp_path, *names) / "llamagen"
    wrong = load_file(path / "wrong_small_vq.safetensors")
    wrong["image"] = wrong["image"] + 2e-4
    save_file(wrong, path / "wrong_small_vq.safetensors")
    (path / "broken_small_vq.json").write_text("[]]")
    assert command(tmp_path, f"{TESTS}::test_vector") == pytest.ExitCode.TESTS_FAILED
    said = capsys.readouterr().out
    assert "9 passed" in said
    assert "3 failed" in said
    assert "wrong_small_vq.safetensors: image: deviates by 0.000" in said
    assert "broken_small_vq.json cannot be read" in said
    assert "family 'pixart'" in said


def test_the_command_refuses_a_folder_without_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is selected: no test of the conformance is deselected into a pass."""
    assert command(tmp_path, str(TESTS), "-k", "not vector") == pytest.ExitCode.USAGE_ERROR
    assert "No vectors under" in capsys.readouterr().err
