from pathlib import Path

import pytest

from cachemark.trial.executors import local as executor
from cachemark.trial.request import PROTOCOL
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


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen commits of what looks like the package; the file ``n`` counts them. Commit 8 speaks another trial protocol."""
    folder = tmp_path_factory.mktemp("repository")
    package = folder / "suite" / "cachemark"
    (package / "trial").mkdir(parents=True)
    (package / "__init__.py").touch()
    git(folder, "init", "-q")
    for number in range(17):
        (folder / "suite" / "n").write_text(str(number))
        (package / "trial" / "request.py").write_text(f"PROTOCOL = {PROTOCOL - (number == 8)}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return folder
