"""``pytest tests/conformance --vectors DIR`` checks the models against ``DIR/<family>/``."""

from pathlib import Path

import pytest

from .discovery import DEFAULT, find


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", metavar="DIR", help=f"folder with <family>/<anything>_<kind>.safetensors (default: {DEFAULT.name} here)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "item" in metafunc.fixturenames:
        # Without this folder on the command line the option is not known yet, hence the default.
        items = find(Path(metafunc.config.getoption("--vectors", default=None) or DEFAULT))
        # A network of full size takes as long as most others together.
        metafunc.parametrize("item", [pytest.param(item, id=item.label, marks=[pytest.mark.slow] * item.path.stem.endswith("_full"))
                                      for item in items])
