"""The harness itself: discovery, problems, command and summary."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cachemark.methods.registry import METHODS

from .checks import Check, Vector, apart, compressed, content, differing_bytes
from .discovery import DEFAULT, find
from .readers import FAMILIES
from .summary import PATH, summary, text

GOLDEN = DEFAULT / "llamagen" / "golden_small_vq"
TESTS = Path(__file__).with_name("test_vectors.py")


def copied(folder: Path, *names: str) -> Path:
    """Copy the golden tokenizer vectors to other names; return the last path."""
    for name in names:
        target = folder / f"{name}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content(GOLDEN.with_suffix(".safetensors")))
        shutil.copy(GOLDEN.with_suffix(".json"), target.with_suffix(".json"))
    return target


def problem(folder: Path) -> str:
    [single] = [item.problem for item in find(folder)]
    return single


def test_every_check_of_every_file_is_found(tmp_path: Path) -> None:
    """A linked family counts too, and a compressed file once."""
    path = copied(tmp_path / "elsewhere", "llamagen/golden_small_vq", "llamagen/heldout_small_vq")
    compressed(path).write_bytes(lzma.compress(path.read_bytes()))
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / "llamagen").symlink_to(path.parent)
    checks = [check.name for check in FAMILIES["llamagen"]["small_vq"].checks]
    assert [item.label for item in find(tmp_path / "vectors")] == [
        f"llamagen-{stem}_small_vq-{check}" for stem in ("golden", "heldout") for check in checks]
    items = find(DEFAULT)
    assert {item.path.stem for item in items} == {path.stem for path in DEFAULT.rglob("*.json")}
    assert not [item for item in items if item.problem or item.lacking]


@pytest.mark.parametrize(("name", "message"), [
    ("llamagan/golden_small_vq", "Unknown family 'llamagan'. Did you mean 'llamagen'?"),
    ("llamagen/golden_smal_vq", "Unknown kind of llamagen vector 'smal_vq'. Did you mean 'small_vq'?"),
    ("llamagen/deeper/golden_small_vq", "folder named as their family"),
])
def test_what_cannot_be_placed_is_a_problem(tmp_path: Path, name: str, message: str) -> None:
    copied(tmp_path, name)
    assert message in problem(tmp_path)


def test_what_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    path = copied(tmp_path, "llamagen/golden_small_vq")
    path.write_bytes(path.read_bytes()[:-9])
    assert "cannot be read" in problem(tmp_path)
    save_file({"input/codes": torch.zeros(1)}, path)
    assert "no check can be run" in problem(tmp_path)
    path.with_suffix(".json").write_text("{")
    assert "golden_small_vq.json cannot be read" in problem(tmp_path)


def test_what_cannot_be_compared_is_infinitely_far() -> None:
    assert apart(torch.zeros(2), torch.zeros(1, 2)) == float("inf")
    assert apart(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.0])) == 0.5
    expected = torch.tensor([0, 1, 255, 7], dtype=torch.uint8)
    assert differing_bytes(expected.float(), expected) == float("inf")
    assert differing_bytes(torch.tensor([0, 2, 254, 7], dtype=torch.uint8), expected) == 0.5
    assert differing_bytes(torch.tensor([255, 1, 255, 7], dtype=torch.uint8), expected) == float("inf")


@pytest.mark.parametrize(("deviation", "wrong"), [(0.1, False), (0.2, True), (float("nan"), True)])
def test_not_a_number_is_a_fault(deviation: float, wrong: bool) -> None:
    assert bool(Check("x", 0.1, lambda *_: deviation, ()).fault(None, Vector(GOLDEN, {}, {}))) is wrong


# -- the command and the summary --------------------------------------------------------------------------------------------
def command(folder: Path, *options: str) -> int:
    """Return the command's exit code for a folder, run in this process to save imports."""
    return pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-q", *options, "--vectors", str(folder)])


def test_the_command_checks_the_given_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, str(TESTS), "-k", "not vector") == pytest.ExitCode.USAGE_ERROR, "an empty folder, even if nothing is selected"
    names = ("llamagen/lacking_small_vq", "llamagen/broken_small_vq", "pixart/golden_small", "llamagen/wrong_small_vq")
    path = copied(tmp_path, *names)
    tensors = load_file(path)
    save_file(tensors | {"image": tensors["image"] + 2e-4}, path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "quant"}, path.with_name("lacking_small_vq.safetensors"))
    path.with_name("broken_small_vq.json").write_text("[]]")
    assert command(tmp_path, f"{TESTS}::test_vector") == pytest.ExitCode.TESTS_FAILED
    output = capsys.readouterr().out
    assert "3 failed, 8 passed, 1 skipped" in output
    for message in ("wrong_small_vq.safetensors: image: deviates by 0.000", "broken_small_vq.json cannot be read", "family 'pixart'"):
        assert message in output


def test_the_summary_in_the_package_is_that_of_these_vectors() -> None:
    checked = summary()
    assert PATH.read_text(encoding="utf-8") == text(checked), "the vectors or their checks have changed: run `make docs`"
    assert set(checked) == {file.relative_to(DEFAULT).with_suffix("").as_posix() for file in DEFAULT.rglob("*.json")}
    kinds = [kind for family in FAMILIES.values() for kind in family.values()]
    assert all(kind.about for kind in kinds)
    assert "full" in {method for kind in kinds for method in kind.methods} <= set(METHODS)
