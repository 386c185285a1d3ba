"""Every check of every vector file on the real model classes, and the harness itself."""

import functools
import json
import lzma
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from cachemark.core.errors import UnknownName
from cachemark.methods.registry import METHODS

from .checks import Kind, Vector, compressed, content, matching
from .discovery import DEFAULT, KINDS, Item, find
from .summary import PATH, summary


@functools.cache
def vector_of(path: Path) -> Vector:
    return Vector.load(path)


@functools.cache
def subject_of(path: Path, build: Any) -> Any:
    return build(vector_of(path))


@functools.cache
def fault_of(path: Path, kind: Kind, name: str) -> str:
    """Return the failure of the named check on a file, or ""."""
    vector = vector_of(path)
    check = next(check for check in kind.checks_of(vector.names) if check.name == name)
    with torch.no_grad():
        return check.fault(subject_of(path, kind.build), vector)


def test_vector(item: Item) -> None:
    if item.lacking:
        pytest.skip(f"{item.path.name} holds no {item.lacking}")
    if fault := fault_of(item.path, item.kind, item.check.name):
        pytest.fail(f"{item.path}: {fault}", pytrace=False)


def disturbed(tensor: Tensor) -> Tensor:
    """Return a different tensor of the same kind and finite values."""
    if tensor.dtype == torch.bool:
        return ~tensor
    finite = tensor.nan_to_num(0, 0, 0) if tensor.is_floating_point() else tensor
    return -finite - 1 - finite.abs().max() if tensor.is_floating_point() else tensor ^ 1


def unnoticed(path: Path, kind: Kind) -> set[str]:
    """Return checks that never fail, and expected tensors that no check depends on."""
    vector, subject = vector_of(path), subject_of(path, kind.build)
    checks = kind.checks_of(vector.names)
    pending = {check.name for check in checks if not any(need.startswith("json/") for need in check.needs)}
    pending |= {name for check in checks for name, _ in matching(check.needs[0], vector.tensors)}
    for check in checks:
        for name in [name for need in check.needs for name, _ in matching(need, vector.tensors)]:
            if {check.name, name} & pending:
                other = replace(vector, tensors={**vector.tensors, name: disturbed(vector.tensors[name])})
                pending -= {check.name, name} if check.fault(subject, other) else set()
    return pending


PATHS = sorted({item.path for item in find(DEFAULT)})
DAILY = [path for path in PATHS if path.stem == "golden_small" and path.parent.name == "llamagen"]  # the others at night


@pytest.mark.parametrize("path", [
    pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[] if path in DAILY else [pytest.mark.slow]) for path in PATHS])
def test_every_stored_tensor_counts(path: Path) -> None:
    """Each tensor is read by a check, and changing it fails a check."""
    kind, vector = next(item.kind for item in find(DEFAULT) if item.path == path), vector_of(path)
    for check in kind.checks_of(vector.names):
        assert not fault_of(path, kind, check.name)
    with torch.no_grad():
        assert not unnoticed(path, kind)
    assert vector.used == vector.tensors.keys()


# -- the harness ------------------------------------------------------------------------------------------------------
GOLDEN = DEFAULT / "llamagen" / "golden_small_vq"


def copied(folder: Path, *names: str) -> Path:
    """Copy the golden tokenizer vectors to other names; return the last path."""
    for name in names:
        target = folder / f"{name}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content(GOLDEN.with_suffix(".safetensors")))
        shutil.copy(GOLDEN.with_suffix(".json"), target.with_suffix(".json"))
    return target


def test_every_check_of_every_file_is_found(tmp_path: Path) -> None:
    """A linked family counts too, and a compressed file once."""
    path = copied(tmp_path / "elsewhere", "llamagen/golden_small_vq", "llamagen/heldout_small_vq")
    compressed(path).write_bytes(lzma.compress(path.read_bytes()))
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / "llamagen").symlink_to(path.parent)
    checks = [check.name for check in KINDS["llamagen/small_vq"].checks]
    assert [item.label for item in find(tmp_path / "vectors")] == [
        f"llamagen-{stem}_small_vq-{check}" for stem in ("golden", "heldout") for check in checks]
    assert not [item for item in find(DEFAULT) if item.lacking]


@pytest.mark.parametrize(("name", "change", "message"), [
    ("llamagan/golden_small_vq", lambda path: None, "Unknown kind of vector 'llamagan/small_vq'. Did you mean 'llamagen/small_vq'?"),
    ("llamagen/golden_small_vq", lambda path: path.write_bytes(path.read_bytes()[:-9]), "deserializ"),
    ("llamagen/golden_small_vq", lambda path: save_file({"input/codes": torch.zeros(1)}, path), "no check can be run"),
    ("llamagen/golden_small_vq", lambda path: path.with_suffix(".json").write_text("{"), "Expecting property name"),
    ("llamagen/golden_small_vq", lambda path: path.unlink(), "No vectors under"),
])
def test_what_cannot_be_checked_is_refused(name: str, change: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    change(copied(tmp_path, name))
    with pytest.raises((UnknownName, ValueError, SafetensorError)) as raised:
        find(tmp_path)
    assert message in str(raised.value)


def test_the_summary_in_the_package_is_that_of_these_vectors() -> None:
    checked = summary()
    assert json.loads(PATH.read_text(encoding="utf-8")) == checked, "the vectors or their checks have changed: run `make docs`"
    assert set(checked) == {file.relative_to(DEFAULT).with_suffix("").as_posix() for file in DEFAULT.rglob("*.json")}
    assert all(kind.about for kind in KINDS.values())
    assert "full" in {method for kind in KINDS.values() for method in kind.methods} <= set(METHODS)
