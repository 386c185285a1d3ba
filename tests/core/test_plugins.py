"""Plug-ins written for an earlier version: each import and each name that is no more is answered with the new one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from cachemark.contract.method import Method
from cachemark.core import plugins, registry
from cachemark.core.errors import BadPlugin

METHOD = """
from dataclasses import dataclass
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting

@registry.methods.add("{name}")
@dataclass
class Old(Evicting):
    {body}
"""


@pytest.mark.parametrize(("line", "new"), [
    ("from cachemark import registry", "cachemark.core.registry"),
    ("from cachemark.registry import methods", "cachemark.core.registry"),
    ("from cachemark.spec import Sampling", "cachemark.core.spec"),
    ("from cachemark.cache.method import Evicting", "cachemark.methods.base.evicting"),
    ("from cachemark.cache.select import lowest", "cachemark.methods.base.evicting"),
    ("from cachemark.cache.geometry import Site", "cachemark.cache.layout"),
    ("from cachemark.cache.slot import Slots", "cachemark.cache.bank.SlotBank"),
])  # fmt: skip
def test_an_old_import_names_the_new_path(line: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(f"import os\n{line}\n")
    with pytest.raises(BadPlugin, match=r"old\.py:2: .*Error") as caught:
        plugins.load(tmp_path / "old.py")
    assert new in caught.value.remedy


@pytest.mark.parametrize("line", ["import nowhere_at_all", "from cachemark.cache.slot import Nothing", "raise ImportError('mine')"])
def test_any_other_import_error_is_told_as_it_is(line: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"{line}\n")
    with pytest.raises(BadPlugin, match=r"other\.py:1") as caught:
        plugins.load(tmp_path / "other.py")
    assert caught.value.remedy.startswith("Mend the file")


@pytest.mark.parametrize("new", sorted(set(plugins.PATHS.values())))
def test_the_new_paths_exist(new: str) -> None:
    for path in re.findall(r"cachemark[\w.]+", new):
        module, _, name = path.rpartition(".")
        found = importlib.util.find_spec(path) if importlib.util.find_spec(module).submodule_search_locations else None  # type: ignore[union-attr]
        assert found or hasattr(importlib.import_module(module), name), path


def test_a_name_that_is_no_longer_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "edged.py").write_text(METHOD.format(name="edged", body='edge = "token"'))
    try:
        with pytest.raises(BadPlugin, match="'edged' defines edge") as caught:
            plugins.load(tmp_path / "edged.py")
        assert "edge is now evict_after" in caught.value.remedy
    finally:
        registry.methods._entries.pop("edged", None)


def test_the_new_names_are_members_of_a_method() -> None:
    assert all(hasattr(Method, new) and not hasattr(Method, old) for old, new in plugins.ATTRIBUTES.items())
