"""Order and collection of tests. What imports torch is in :mod:`support.fixtures`, which the controller of workers leaves out."""

import gc
import os
from collections.abc import Generator

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's, read when it is imported: two workers that take all cores each wait for one another

import pytest

LONG = ("hostile", "workflows", "browser", "trial", "tools", "metrics", "contracts", "conformance", "cli")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and, in workers, none of what they all share later: modules and tests stay.

    Where a worker ends, nobody reads what Triton says of objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        if hasattr(session.config, "workerinput"):
            gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders with long files come first, so that no worker is left with one at the end."""
    order = {folder: place for place, folder in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(LONG)))


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("support.fixtures")
