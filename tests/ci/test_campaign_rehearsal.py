"""A whole campaign with small models, with only the packages that are installed on the GPU machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "gpu_campaign.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_every_stage_runs_and_its_results_come_home(tmp_path: Path, bare: Callable[[], dict[str, str]]) -> None:
    """In as many calls as a slow machine takes: each goes on where the one before has ended."""
    folder = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "run", str(folder), "--rehearse", "--budget", "900"]
    for _ in range(4):
        done = subprocess.run(command, env=bare(), capture_output=True, text=True, check=False)
        log = (folder / "campaign.log").read_text()
        assert done.returncode in (0, 4), f"{done.stdout}\n{log[-20000:]}"
        if done.returncode == 0:
            break
    listed = subprocess.run([sys.executable, str(SCRIPT), "list", str(folder)], env=bare(), capture_output=True, text=True, check=True)
    assert all(line.split()[1] == "done" for line in listed.stdout.splitlines()), listed.stdout

    again = subprocess.run(command, env=bare(), capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, ""), "nothing is left to do"

    home = [sys.executable, str(SCRIPT), "home", str(folder), "--report", str(tmp_path / "report.html"), "--reason", "the first"]
    ran = subprocess.run(home, capture_output=True, text=True, check=False, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "suite")})
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000
    (baseline,) = (tmp_path / "baselines" / "accepted").rglob("*.json")
    assert f"baseline: {baseline.relative_to(tmp_path)}" in ran.stdout
    assert "| llamagen-xl, 256 | full 1 | images/s | – | not in this campaign | – | – |" in ran.stdout
