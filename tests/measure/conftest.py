"""What the tests of measuring share: the small model as a plug-in with its weights, and a plan that has been run."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import examples, stages
from .fake_nvml import Card, FakeNvml


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


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> stages.Stage:
    """A plan that has been run once, shared by all tests of a session."""
    return stages.measured(tmp_path_factory.getbasetemp())
