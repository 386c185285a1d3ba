"""The file that tells the cards what the vectors check is what the vectors check."""

from __future__ import annotations

import shutil
from pathlib import Path

from cachemark.methods.registry import METHODS

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES
from .summary import PATH, summary, text


def test_the_summary_that_the_package_carries_is_of_these_vectors() -> None:
    assert PATH.read_text(encoding="utf-8") == text(summary()), "the vectors or their checks have changed: run `make docs`"


def test_every_vector_and_every_check_is_in_it() -> None:
    found = summary()
    assert set(found) == {file.relative_to(DEFAULT).with_suffix("").as_posix() for file in DEFAULT.rglob("*.json")}
    for name, entry in found.items():
        family, _, file = name.partition("/")
        checks = FAMILIES[family][file.partition("_")[2]].checks_of(Vector.load(DEFAULT / f"{name}.safetensors").names)
        assert entry["checks"] == {check.name: check.tolerance for check in checks}


def test_every_kind_says_what_it_is_about_and_names_methods_that_exist() -> None:
    kinds = [kind for family in FAMILIES.values() for kind in family.values()]
    assert all(kind.about for kind in kinds)
    named = {method for kind in kinds for method in kind.methods}
    assert "full" in named <= set(METHODS)


def test_fewer_vectors_give_another_summary(tmp_path: Path) -> None:
    for file in (DEFAULT / "llamagen").iterdir():
        (tmp_path / "llamagen").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "llamagen")
    found = summary(tmp_path)
    assert 0 < len(found) < len(summary())
    assert text(found) != text(summary())
