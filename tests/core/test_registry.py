"""Registries import a built-in only when its name is looked up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.core.registry import Registry
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import CATALOGUE, MODELS

PROBE = """
import json, sys
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
names = [*METHODS, *MODELS]
before = "cachemark.methods.window" in sys.modules or "cachemark.models.llamagen" in sys.modules
METHODS.get("window"), MODELS.get("tiny-llamagen")
print(json.dumps([len(names), before, "cachemark.methods.window" in sys.modules, "cachemark.methods.h2o" in sys.modules]))
"""


def test_a_lookup_imports_one_file() -> None:
    ran = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [len([*METHODS, *MODELS]), False, True, False]


@pytest.mark.parametrize("name", [*METHODS])
def test_a_method_has_the_name_of_its_file(name: str) -> None:
    assert METHODS.get(name).name == name


@pytest.mark.parametrize("file", CATALOGUE)
def test_a_file_of_the_catalogue_registers_the_models_that_are_listed(file: str) -> None:
    assert {MODELS.get(name).name for name in CATALOGUE[file]} == set(CATALOGUE[file])


def test_decoders_are_found_by_name() -> None:
    assert {name: DECODERS.get(name).name for name in DECODERS} == {name: name for name in ("jacobi", "scd", "sequential", "sjd")}


def test_a_built_in_name_is_taken_before_its_file_is_imported() -> None:
    table: Registry[type] = Registry("thing", object, classes=True, built_in={"mine": "cachemark.nowhere"})
    with pytest.raises(BadPlugin, match=r"already registered by cachemark\.nowhere"):
        table.add("mine")(type("Mine", (), {}))
