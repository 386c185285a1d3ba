"""Shared fixtures: one thread, reproducible property tests, clean registries, the small model, and the stand-in for NVML."""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from cachemark.core import registry
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.plans import reuse
from cachemark.trial import identity, supervisor

from . import examples, fork_server, stages
from .fake_nvml import Card, FakeNvml

torch.set_num_threads(1)
settings.register_profile("cachemark", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("cachemark")
fork_server.CODE.add(identity.ASK)
fork_server.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Trials are forked where nothing asks for a process as a user starts it."""
    fork_server.enabled = not any(map(item.get_closest_marker, ("slow", "gpu", "fresh_process")))


def foreign(table: registry.Registry) -> set[str]:
    """Names in a registry that no file of the package has put there."""
    made_in = {name: getattr(getattr(thing, "load", thing), "__module__", "") for name, thing in table.entries().items()}
    return {name for name, module in made_in.items() if not module.startswith("cachemark.")}


def plugins() -> set[str]:
    """Names of loaded plug-ins, looked for only where modules have changed, since there are thousands."""
    return _plugins_among(len(sys.modules), next(reversed(sys.modules)))


@lru_cache(1)
def _plugins_among(count: int, newest: str) -> set[str]:
    return {name for name in list(sys.modules) if name.startswith("cachemark_plugin_")}


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Plug-ins of a test are gone when it ends, and a test that leaves torch more threads, for which others would wait, fails."""
    before, loaded = [set(table._entries) for table in (METHODS, MODELS)], plugins()
    yield
    for table, known in zip((METHODS, MODELS), before, strict=True):
        for name in foreign(table) - known if table._entries.keys() != known else ():
            del table._entries[name]
    for name in plugins() - loaded:
        del sys.modules[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 1, f"this test leaves torch with {threads} threads"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small model as a plug-in, ``dot.py``, and its weights."""
    made = tmp_path_factory.mktemp("dot")
    (made / "dot.py").write_text(examples.MODEL)
    examples.weights(made / "dot.safetensors")
    return made


@pytest.fixture
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of the test alone, and every device in sight."""
    monkeypatch.setenv("CACHEMARK_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def cards() -> list[Card]:
    """What the stand-in for NVML sees."""
    return [Card("GPU-aaaa"), Card("GPU-bbbb")]


@pytest.fixture
def nvml(cards: list[Card]) -> FakeNvml:
    return FakeNvml(*cards)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is started fails the test."""
    reuse.code_identity()  # once in a process it asks git, and that is not a trial
    popen = supervisor.subprocess.Popen

    def refuse(command: Sequence[str], *arguments: Any, **options: Any) -> Any:
        assert "cachemark.trial.child.main" not in command, "a trial was started"
        return popen(command, *arguments, **options)  # where this process has threads a plug-in is tried in an interpreter

    monkeypatch.setattr(supervisor.subprocess, "Popen", refuse)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> stages.Stage:
    """A plan that has been run once, shared by all tests of a session."""
    return stages.measured(tmp_path_factory.getbasetemp())


@pytest.fixture
def stage(measured: stages.Stage, tmp_path: Path) -> stages.Stage:
    """A copy of that, to be changed."""
    return measured.copy(tmp_path / "copy")


@pytest.fixture
def unrun(tmp_path: Path) -> stages.Stage:
    """A stage on which nothing has been run."""
    return stages.stage(tmp_path / "unrun")
