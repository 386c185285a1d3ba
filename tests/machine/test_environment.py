"""What figures depend on besides the case, and which changes make a stored one invalid."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core import plugins
from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS
from cachemark.machine import environment
from cachemark.machine.environment import code_identity, skip_key, skip_parts, slug
from support import examples
from support.stages import forgetting

CASE = Case("m", "random:0", (4, 4), "c", Sampling(), "streaming", {"B": 8})
CACHED = (environment._code, environment._method_code, environment.code_identity)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package whose code may be edited; its hashes are read anew after :func:`forget`."""
    copy = tmp_path / "installed" / "cachemark"
    shutil.copytree(environment.PACKAGE, copy, ignore=shutil.ignore_patterns("data", "__pycache__"))
    monkeypatch.setattr(environment, "PACKAGE", copy)
    forget()
    yield copy
    monkeypatch.undo()
    forget()


def forget() -> None:
    for function in CACHED:
        function.cache_clear()


def parts(case: Case = CASE) -> dict[str, str]:
    forget()
    return skip_parts(case, environment.environment("cpu", 1), "cpu")


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    assert (skip_key(before) == skip_key(after)) == (before == after)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(("file", "part"), [
    ("methods/streaming.py", {"method"}), ("methods/full.py", {"method"}), ("cache/slot.py", {"models"}),
    ("models/tiny/tiny_vq.py", {"models"}),
    ("trial/child/measure.py", {"measuring"}), ("metrics/fidelity.py", {"measuring"}), ("report/view/view.py", set()),
    ("cli/run.py", set()),
    ("store/db.py", set()), ("gate/baseline_check.py", set()),
])  # fmt: skip
def test_an_edit_of_what_measures_counts_and_of_what_judges_does_not(file: str, part: set[str], package: Path) -> None:
    before = parts()
    with (package / file).open("a") as text:
        text.write("# edited\n")
    assert changed(before, parts()) == part


def test_a_new_definition_of_a_metric_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts()
    monkeypatch.setitem(METRICS, "kl", replace(METRICS["kl"], version=METRICS["kl"].version + 1))
    assert changed(before, parts()) == {"metrics"}


def test_other_words_about_a_metric_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts()
    monkeypatch.setitem(METRICS, "kl", replace(METRICS["kl"], meaning="the same in other words"))
    assert changed(before, parts()) == set()


def test_threads_and_devices_make_other_numerics() -> None:
    one, two = environment.environment("cpu", 1), environment.environment("cpu", 2)
    assert one.fingerprint != two.fingerprint
    assert one.machine_class != two.machine_class
    assert one == environment.environment("cpu", 1)
    assert one.facts["threads"] == 1


def test_a_plug_in_counts_with_its_file_and_with_what_it_builds_on(tmp_path: Path, package: Path) -> None:
    file = tmp_path / "dot.py"
    file.write_text(examples.MODEL)
    calm = replace(CASE, method="calm")
    with forgetting():
        plugins.load(file)
        before = parts(calm)
        with (package / "methods" / "window.py").open("a") as text:
            text.write("# edited\n")
        assert changed(before, parts(calm)) == {"method"}
        before = parts(calm)
        file.write_text(examples.MODEL + "# edited\n")
        assert changed(before, parts(calm)) == {"method"}
        assert changed(parts(), parts()) == set()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_of_somebody_elses_checkout_is_not_ours(package: Path) -> None:
    """An environment often lies in the folder of a project, and pip puts the package there."""
    project = package.parent.parent
    git = ["git", "-C", str(project), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *command], check=True)
    assert (code_identity()["commit"], code_identity()["dirty"]) == ("", None)
    subprocess.run([*git, "add", "installed"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "now ours"], check=True)
    forget()
    assert len(code_identity()["commit"]) == 40
    assert code_identity()["dirty"] is False
    (package / "core" / "errors.py").write_text("")
    forget()
    assert code_identity()["dirty"] is True


def test_code_without_git_has_its_hash(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    monkeypatch.setenv("PATH", str(package))
    identity = code_identity()
    assert (identity["commit"], identity["dirty"]) == ("", None)
    forget()
    with (package / "trial" / "child" / "measure.py").open("a") as text:
        text.write("# edited\n")
    assert code_identity()["hash"] != identity["hash"]


@pytest.mark.parametrize(("text", "expected"), [
    ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
    ("Intel(R) Xeon(R) @ 2.50GHz, 2 threads", "intel-r-xeon-r-2-50ghz-2-threads"),
    ("…", ""),
])  # fmt: skip
def test_a_slug_can_name_a_folder(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_the_hash_does_not_depend_on_where_the_package_lies(request: pytest.FixtureRequest) -> None:
    forget()
    here = code_identity()["hash"]
    request.getfixturevalue("package")
    assert code_identity()["hash"] == here
