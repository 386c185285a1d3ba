"""``pytest tests/conformance --vectors DIR`` checks the models against ``DIR/<family>/``."""

from pathlib import Path

import pytest

from .discovery import DEFAULT, NOTHING, find


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", metavar="DIR", help=f"folder with <family>/<anything>_<kind>.safetensors (default: {DEFAULT.name} here)")


def pytest_configure(config: pytest.Config) -> None:
    """Fail if the given folder is empty, whatever tests are selected."""
    folder = config.getoption("--vectors", default=None)
    if folder and (first := find(Path(folder))[0]).label == NOTHING:
        raise pytest.UsageError(first.problem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "item" in metafunc.fixturenames:
        # Without this folder on the command line the option is not known yet, hence the default.
        folder = Path(metafunc.config.getoption("--vectors", default=None) or DEFAULT)
        items = find(folder)
        metafunc.parametrize("item", items, ids=[item.label for item in items])
