from pathlib import Path

import pytest

from cachemark.trial.executors import local as executor
from cachemark.trial.request import PROTOCOL
from support import stages
from support.repositories import git

from .quick_machine import Machine


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, away from the accepted baselines of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(executor, "run_trials", made.run_trials)
    monkeypatch.setattr(executor, "identify", made.identify)
    return made


@pytest.fixture
def stage(measured: stages.Stage, tmp_path: Path) -> stages.Stage:
    return measured.copy(tmp_path / "copy")


@pytest.fixture(scope="module")
def old_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, where the commit in the middle speaks another trial protocol."""
    return _repository(tmp_path_factory.mktemp("repository"), {8: PROTOCOL - 1})


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen commits of something that looks like the package; the file ``n`` counts them."""
    return _repository(tmp_path_factory.mktemp("repository"), {})


def _repository(folder: Path, protocols: dict[int, int]) -> Path:
    """Seventeen commits; ``protocols``: those with another trial protocol."""
    package = folder / "suite" / "cachemark"
    (package / "trial").mkdir(parents=True)
    (package / "__init__.py").touch()
    git(folder, "init", "-q")
    for number in range(17):
        (folder / "suite" / "n").write_text(str(number))
        (package / "trial" / "request.py").write_text(f"PROTOCOL = {protocols.get(number, PROTOCOL)}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return folder
