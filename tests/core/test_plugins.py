"""Plug-ins written for an earlier version: each import and each name that is no more is answered with the new one."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachemark.contract.method import Method
from cachemark.core import plugins, registry
from cachemark.core.errors import BadPlugin
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.masked.partial import Partial

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
    ("from cachemark.cache.mass import fold", "cachemark.cache.attention"),
    ("from cachemark.cache.reference import PaddedFull", "cachemark.methods.base.paper_baseline"),
    ("from cachemark.cache.uncached import Bidirectional", "cachemark.contract.method"),
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
    assert caught.value.remedy.startswith("Fix the file")


@pytest.mark.parametrize("new", sorted(set(plugins.PATHS.values())))
def test_the_new_paths_exist(new: str) -> None:
    for path in re.findall(r"cachemark[\w.]+", new):
        module, _, name = path.rpartition(".")
        found = importlib.util.find_spec(path) if importlib.util.find_spec(module).submodule_search_locations else None  # type: ignore[union-attr]
        assert found or hasattr(importlib.import_module(module), name), path


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Callable[[str], BadPlugin]]:
    """The error with which a plug-in of this text, whose method is called ``old``, is refused."""

    def refused(text: str) -> BadPlugin:
        (tmp_path / "old.py").write_text(text)
        with pytest.raises(BadPlugin) as caught:
            plugins.load(tmp_path / "old.py")
        return caught.value

    yield refused
    registry.methods._entries.pop("old", None)


@pytest.mark.parametrize(("old", "new"), [("edge", "evict_after"), ("held", "kept_before")])
def test_a_name_that_is_no_longer_read_is_refused(old: str, new: str, refused: Callable[[str], BadPlugin]) -> None:
    said = refused(METHOD.format(name="old", body=f'{old} = "token"'))
    assert f"'old' defines {old}" in said.message
    assert f"{old} is now {new}" in said.remedy


def test_a_name_that_its_base_class_never_had_is_its_own(tmp_path: Path) -> None:
    plain = METHOD.replace("cachemark.methods.base.evicting import Evicting", "cachemark.contract.method import Method")
    (tmp_path / "own.py").write_text(plain.replace("(Evicting)", "(Method)").format(name="own", body="held = 3"))
    assert plugins.load(tmp_path / "own.py") == ["own"]


def test_a_class_that_leaves_out_what_its_base_class_asks_for_is_refused(refused: Callable[[str], BadPlugin]) -> None:
    partial = METHOD.replace("cachemark.methods.base.evicting import Evicting", "cachemark.methods.masked.partial import Partial")
    said = refused(partial.replace("(Evicting)", "(Partial)").format(name="old", body="def refreshes(self, step): return True"))
    assert "method 'old' does not define check, choose, fit, keep, selects, spans" in said.message


def test_the_new_names_are_members_of_a_base_class_and_the_old_ones_are_not() -> None:
    bases = (Method, Evicting, Partial)
    assert all(any(hasattr(base, new) for base in bases) for new in plugins.ATTRIBUTES.values())
    assert not [old for old in plugins.ATTRIBUTES if any(hasattr(base, old) for base in bases)]


def test_the_function_that_reads_the_cache_is_where_it_was() -> None:
    from cachemark.cache.attention import attention

    assert callable(attention)
