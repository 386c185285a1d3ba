"""Every check of every vector file on the real model classes; each stored tensor counts."""

import functools
import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import CachemarkError
from cachemark.methods.registry import METHODS

from .checks import Kind, Vector, matching
from .discovery import DEFAULT, KINDS, Item, find
from .summary import PATH, summary

vector_of = functools.cache(Vector.load)


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
    finite = tensor.nan_to_num(0, 0, 0)
    return -finite - 1 - finite.abs().max() if tensor.is_floating_point() else tensor ^ torch.ones_like(tensor)


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


def test_a_file_counts_once_packed_and_unpacked_and_through_a_link_and_none_is_passed_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No vectors under .*expected <family>/"):
        find(tmp_path / "empty")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/mar").symlink_to(DEFAULT / "mar")
    through = [item.label for item in find(tmp_path / "linked")]
    assert through == [item.label for item in find(DEFAULT) if item.path.parent.name == "mar"] != []
    shutil.copytree(DEFAULT / "mar", unpacked := tmp_path / "unpacked/mar")
    for file in unpacked.glob("*.xz"):
        file.with_suffix("").write_bytes(lzma.decompress(file.read_bytes()))
    assert [item.label for item in find(unpacked.parent)] == through
    (unpacked / "golden_unknown.safetensors").touch()
    (tmp_path / "again").symlink_to(unpacked.parent)
    with pytest.raises(CachemarkError, match="unknown"):
        find(tmp_path / "again")


def test_every_file_has_all_its_checks_and_the_summary_in_the_package_is_of_them() -> None:
    checked = summary()
    assert not [item for item in find(DEFAULT) if item.lacking]
    assert json.loads(PATH.read_text(encoding="utf-8")) == checked, "the vectors or their checks have changed: run `make docs`"
    assert set(checked) == {file.relative_to(DEFAULT).with_suffix("").as_posix() for file in DEFAULT.rglob("*.json")}
    assert all(kind.about for kind in KINDS.values())
    assert "full" in {method for kind in KINDS.values() for method in kind.methods} <= set(METHODS)
