import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.store.db import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without rows, made once, because making its tables takes longer than most tests."""
    made = tmp_path_factory.mktemp("empty") / "empty.db"
    Store.open(made).close()
    return made


@pytest.fixture
def store(path: Path, empty: Path) -> Iterator[Store]:
    shutil.copy(empty, path)
    with Store.open(path) as opened:
        yield opened
