"""Two versions of a plug-in as sides: commits of its repository or files, and only the cases that use it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.gate.nights import Night
from cachemark.plans.expand import expand
from cachemark.plans.schema import prepare
from cachemark.plugins import loading
from cachemark.store.rows import RunRecord
from cachemark.trial.request import TrialRequest
from cachemark.workflows.plugin_versions import sides_of_versions, version_requests
from report.report_sample import ENVIRONMENT
from support.stages import forgetting

CODE = '''import cachemark as cm


@cm.method("knorm")
class KNorm(cm.Scored):
    """Keep small keys."""

    source = "test"

    def score(self, step, slots):
        return -slots.keys().float().square().sum(dim=-1)
'''
PLAN = 'name = "p"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n'


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=a@b.c", *arguments], cwd=folder, check=True, capture_output=True)


def test_each_side_runs_its_own_version_of_the_cases_that_use_it(tmp_path: Path) -> None:
    (file := tmp_path / "knorm.py").write_text(CODE)
    (plan := tmp_path / "p.toml").write_text(PLAN)
    git(tmp_path, "init")
    git(tmp_path, "add", "knorm.py")
    git(tmp_path, "commit", "-m", "one")
    file.write_text(CODE + "\n\nX = 1\n")
    with forgetting():
        loaded, files = prepare(str(plan), [file])
        cases = {planned.case.label: planned for planned in expand(loaded)}
        with version_requests(TrialRequest(60.0, 1, files), ("HEAD", str(file))) as requests:
            assert Path(requests[0].plugins[0]).read_text() == CODE
            before, after = sides_of_versions(cases, files, requests)
            assert list(before) == list(after) == ["knorm 1/2"]
            for side, request in ((before, requests[0]), (after, requests[1])):
                assert side["knorm 1/2"].needs == (loading.read(request.plugins[0]).digest,)
        with version_requests(TrialRequest(60.0, 1, files), (str(file), str(file))) as requests, pytest.raises(BadPlugin, match="equal"):
            sides_of_versions(cases, files, requests)
        with pytest.raises(BadPlugin, match="2 plug-ins"), version_requests(TrialRequest(60.0, 1, (*files, *files)), ("a", "b")):
            pass


@pytest.mark.parametrize(("stated", "sides", "unchanged"), [
    ({"options": ["--versions", "a", "b", "--plugin", "/f.py"]}, ["--versions", "a", "b", "--plugin", "/f.py"], False),
    ({"options": ["--commits", "main~1", "main"], "code": [{"commit": "a" * 40}] * 2}, ["--commits", "a" * 12, "a" * 12], True),
    ({"options": ["--env", "a", "b"], "code": [{"commit": "a" * 40}] * 2}, ["--env", "a", "b"], False),
])  # fmt: skip
def test_the_printed_command_names_the_sides_as_they_were_compared(stated: dict[str, object], sides: list[str], unchanged: bool) -> None:
    record = RunRecord(1, "compare/p", {"sides": ["a", "b"], "alike": "same", **stated}, "2026", "2026", "finished", ENVIRONMENT, {})
    assert (Night(record, ()).sides, Night(record, ()).unchanged) == (sides, unchanged)
