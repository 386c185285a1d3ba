"""Stored outcomes: which changes of code, machine and definitions make one invalid."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cachemark.core.spec import Case, Sampling
from cachemark.core.units import METRICS
from cachemark.machine import environment
from cachemark.machine.gpu import gpus
from cachemark.plans import reuse
from cachemark.plans.reuse import COUNTED, code_identity, result_key, result_parts
from cachemark.plugins import loading as plugins
from support import examples
from support.fake_nvml import Card, FakeNvml
from support.repositories import git
from support.stages import forgetting

CASE = Case("tiny-llamagen", "random:0", (4, 4), "c", Sampling(), "streaming", {"B": 8})
DECODED = replace(CASE, decoder={"name": "jacobi", "window": 4})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package whose code may be edited; its hashes are read anew after :func:`forget`."""
    copy = tmp_path / "installed" / "cachemark"
    shutil.copytree(reuse.PACKAGE, copy, ignore=shutil.ignore_patterns("data", "__pycache__"))
    monkeypatch.setattr(reuse, "PACKAGE", copy)
    forget()
    yield copy
    monkeypatch.undo()
    forget()


def forget() -> None:
    for function in (reuse._code, reuse._commit, reuse.code_identity):
        function.cache_clear()


def parts(case: Case = CASE) -> dict[str, str]:
    forget()
    return result_parts(case, environment.environment("cpu", 1))


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    assert (result_key(before) == result_key(after)) == (before == after)
    return {name for name in before if before[name] != after[name]}


EDITED = {
    "method": ("methods/streaming.py", "methods/full.py", "methods/base/evicting.py", "methods/base/partial.py"),
    "models": ("cache/slot.py", "cache/attention.py", "cache/engines.py", "contract/method.py", "models/tiny/tokenizers.py",
               "models/costs.py", "roofline/bill.py"),
    "measuring": ("metrics/similarity.py", "metrics/compute/speed.py", "trial/child/main.py", "trial/child/measure.py",
                  "trial/child/timing.py", "core/seeds.py", "core/limits.py", "machine/timer.py", "machine/memory.py",
                  "machine/affinity.py"),
    "decoder": ("decoders/jacobi.py", "decoders/__init__.py"),
    "": ("plans/price.py", "plans/deadline.py", "plans/schema.py", "plans/reuse.py", "trial/executors/local.py",
         "trial/supervisor.py", "trial/request.py", "machine/lease.py", "machine/monitor.py",
         "machine/gpu.py", "machine/rates.py", "machine/environment.py", "core/spec.py", "core/units.py", "core/errors.py",
         "report/__init__.py", "cli/__init__.py", "store/__init__.py", "gate/__init__.py", "stats/__init__.py",
         "workflows/__init__.py", "export/__init__.py"),
}  # fmt: skip


def test_an_edit_counts_where_it_changes_figures_and_nowhere_else(package: Path) -> None:
    for part, files in EDITED.items():
        for file in files:
            if not (package / file).exists():
                pytest.fail(f"{file} is gone: name another file of its room")
            before = parts(DECODED)
            with (package / file).open("a") as text:
                text.write("# edited\n")
            assert changed(before, parts(DECODED)) == ({part} if part else set()), file


def test_every_place_that_counts_is_tested_and_a_new_definition_of_a_metric_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, place in ((part, place) for part, places in COUNTED.items() for place in places):
        assert (reuse.PACKAGE / place).exists(), place
        assert any(file.startswith(place) for file in EDITED[part]), place
    before = parts()
    monkeypatch.setitem(METRICS._table, "kl", replace(METRICS["kl"], version=METRICS["kl"].version + 1))
    assert changed(before, parts()) == {"metrics"}


def test_a_plug_in_of_a_method_counts_with_its_file_and_with_what_it_builds_on(tmp_path: Path, package: Path) -> None:
    file, calm = tmp_path / "dot.py", replace(CASE, method="calm")
    file.write_text(examples.MODEL)
    with forgetting():
        plugins.load(file)
        before = parts(calm)
        with (package / "methods" / "window.py").open("a") as text:
            text.write("# edited\n")
        assert changed(before, parts(calm)) == {"method"}
        before = parts(calm)
        file.write_text(examples.MODEL + "# edited\n")
        plugins.load(file)
        assert changed(before, parts(calm)) == {"method"}


def test_the_plug_in_of_a_model_counts_for_every_case_on_it_and_any_other_for_none(tmp_path: Path) -> None:
    file, other = tmp_path / "dot.py", tmp_path / "other.py"
    file.write_text(examples.MODEL)
    imports, method = examples.MODEL.partition("CONFIG =")[0], examples.MODEL.partition("@cm.method")[2]
    other.write_text(f'{imports}@cm.method{method.replace("calm", "other")}')
    dot, ours = replace(CASE, model="dot"), parts()
    with forgetting():
        plugins.load(file)
        before = parts(dot)
        assert before["models"] != ours["models"]
        plugins.load(other)
        assert (parts(dot), parts()) == (before, ours)
        file.write_text(examples.MODEL + "# edited\n")
        plugins.load(file)
        assert changed(before, parts(dot)) == {"models"}
        assert parts() == ours


BACKENDS = torch.backends
NUMERICS: list[tuple[str, Any, str, Any]] = [  # the device, and an attribute of a module, or of the card, with another value
    ("cpu", torch, "__version__", "9.9"), ("cpu", BACKENDS.mkldnn, "is_available", lambda: None),
    ("cpu", BACKENDS.mkl, "is_available", lambda: None), ("cpu", BACKENDS.cpu, "get_cpu_capability", lambda: "DEFAULT"),
    ("cuda", None, "name", "Fake H200"), ("cuda", None, "driver", "999.2"), ("cuda", None, "compute_capability", (8, 9)),
    ("cuda", torch.version, "cuda", "13.0"), ("cuda", BACKENDS.cudnn, "version", lambda: 99),
    ("cuda", BACKENDS.cuda, "matmul", SimpleNamespace(allow_tf32=True)), ("cuda", os.environ, "CUBLAS_WORKSPACE_CONFIG", ":16:8"),
]


@pytest.mark.parametrize(("device", "module", "name", "value"), NUMERICS, ids=lambda value: value if isinstance(value, str) else "")
def test_other_libraries_and_kernels_make_other_numerics(
    device: str, module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=False))
    (gpu,) = gpus(FakeNvml(Card("GPU-aaaa")))
    before, same = (environment.environment(device, 1, gpu if device == "cuda" else None).fingerprint for _ in range(2))
    assert before == same
    if module is None:
        vars(gpu)[name] = value
    else:
        (monkeypatch.setitem if module is os.environ else monkeypatch.setattr)(module, name, value)
    assert environment.environment(device, 1, gpu if device == "cuda" else None).fingerprint != before


def test_other_instructions_of_a_processor_of_one_name_make_other_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = set()
    for flags, forbidden in (("fma sse4_1", ""), ("avx2 fma sse4_1", ""), ("avx2 fma sse4_1", "SSE41")):
        monkeypatch.setattr(environment, "_cpu", lambda *fields, flags=flags: flags if "flags" in fields else "model")
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", forbidden)
        fingerprints.add(environment.environment("cpu", 1).fingerprint)
    assert len(fingerprints) == 3


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_of_somebody_elses_checkout_is_not_ours(package: Path) -> None:
    """An environment often lies in the folder of a project, and pip puts the package there."""
    project = package.parent.parent
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "theirs")
    assert (code_identity()["commit"], code_identity()["dirty"]) == ("", None)
    assert "belongs to no commit" in reuse.no_commit()
    git(project, "add", "installed")
    git(project, "commit", "-q", "-m", "now ours")
    forget()
    assert len(code_identity()["commit"]) == 40
    assert (code_identity()["dirty"], reuse.no_commit()) == (False, "")
    (package / "core" / "errors.py").write_text("")
    forget()
    assert code_identity()["dirty"] is True


def test_code_without_git_has_its_hash(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    monkeypatch.setenv("PATH", str(package))
    identity = code_identity()
    assert (identity["commit"], identity["dirty"]) == ("", None)
    assert "git is not installed" in reuse.no_commit()
    forget()
    with (package / "trial" / "child" / "measure.py").open("a") as text:
        text.write("# edited\n")
    assert code_identity()["hash"] != identity["hash"]
