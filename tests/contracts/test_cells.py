"""New methods join the contract by being registered, and those of a test leave again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cachemark.cache.codec import CODECS
from cachemark.contract.method import Method
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import Loaded, Request
from cachemark.models.registry import MODELS
from cachemark.plugins import loading as plugins

from .cells import ATTENTION, MODES, WHOLE, cells, crossed

PLUGIN = """
from dataclasses import dataclass
import cachemark as cm
from cachemark.contract.method import Method

@cm.method("from-a-file")
@dataclass
class FromAFile(Method):
    name = "from-a-file"
"""


def names() -> set[str]:
    return {cell.cls.name for cell in cells()}


def test_every_next_token_method_is_under_contract() -> None:
    classes = [METHODS.get(name) for name in METHODS]
    assert names() == {cls.name for cls in classes if "next-token" in cls.paradigms}
    kinds = {(cell.codec, cell.attention) for cell in cells()}
    assert kinds == {(codec, kind) for codec in CODECS for kind in ATTENTION if codec in WHOLE or kind == "gqa"}
    assert [cell.cls.evicts for cell in crossed(cells()) if cell.codec not in WHOLE] == [True] * len(set(CODECS) - set(WHOLE))
    assert set(MODES) <= set(METHODS), "a mode of a method that is gone"
    assert len({cell.label for cell in cells()}) == len(cells())


@pytest.mark.parametrize("attempt", [1, 2])  # the second would fail if the first had left something behind
def test_a_registered_method_joins_and_leaves(attempt: int) -> None:
    assert "joins" not in names()

    @METHODS.add("joins")
    @dataclass
    class Joins(Evicting):
        name = "joins"

    @METHODS.add("masked-only")
    @dataclass
    class MaskedOnly(Method):
        name = "masked-only"
        paradigms = ("masked",)

    assert "joins" in names()
    assert "masked-only" not in names()
    assert any(cell.cls is Joins for cell in cells(evicting=True))


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_plugin_of_a_test_leaves_with_it(attempt: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = Path(tmp_path_factory.getbasetemp()) / "same_file_twice.py"
    file.write_text(PLUGIN)
    assert "from-a-file" not in METHODS
    assert plugins.load(file) == ["from-a-file"]
    assert "from-a-file" in names()


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_model_of_a_test_leaves_with_it(attempt: int) -> None:
    assert "of-a-test" not in MODELS

    def load(request: Request) -> Loaded:
        raise NotImplementedError(attempt)

    tiny = MODELS.get("tiny-var")
    MODELS.add("of-a-test")(replace(tiny, name="of-a-test", load=load))
    assert "of-a-test" in MODELS
