"""What a plug-in brings is proved in a process of its own: what it does to that process is found, and does nothing to this one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cachemark.core import plugin_modules as plugin_modules
from cachemark.core.errors import BadPlugin, UnknownName
from cachemark.kit import method_kit
from cachemark.kit.findings import Checked, KitProof
from cachemark.methods.registry import METHODS
from cachemark.workflows import prove
from cachemark.workflows.prove import ENDS, prove_method, prove_metric, prove_model
from support import examples
from support.stages import call

TEXT = """
import os
import sys
import time
from dataclasses import dataclass

import cachemark.kit.method_kit as kit
import cachemark as cm
from cachemark.methods.fewer_steps import FewerSteps


@cm.method("given")
@dataclass
class Given(FewerSteps):
    name = "given"

    def begin(self, *given):
        super().begin(*given)
        {does}
"""


def proved(folder: Path, does: str, **given: object) -> KitProof:
    (folder / "given.py").write_text(TEXT.format(does=does))
    (proof,) = prove_method(folder / "given.py", **given)  # type: ignore[arg-type]
    return proof


def found(proof: KitProof) -> dict[str, str]:
    """By the name of a check that found something, its first words."""
    return {check.name: check.findings[0].found for check in proof.checks if check.findings}


def test_what_is_in_order_passes_and_is_not_imported_here(tmp_path: Path) -> None:
    heard = list[Checked]()
    proof = proved(tmp_path, "print('on standard error')", on_check=heard.append)
    assert proof.complete
    assert [check.name for check in proof.checks] == [check.name for check in heard]
    assert (len(heard), proof.kind, proof.name) == (len(method_kit.FAMILIES["masked"].checks), "method", "given")
    assert "given" not in METHODS
    assert not [file for file in plugin_modules.files() if file.endswith("given.py")]


@pytest.mark.parametrize(("does", "said"), [("os._exit(0)", "its process ended with exit code 0"),
                                            ("os.kill(os.getpid(), 9)", "its process ended by signal 9")])
def test_a_method_that_ends_its_process_is_found(does: str, said: str, tmp_path: Path) -> None:
    proof = proved(tmp_path, does)
    assert found(proof) == {ENDS: said}
    assert not proof.complete


def test_a_method_that_leaves_is_found_where_it_does(tmp_path: Path) -> None:
    told = found(proved(tmp_path, "sys.exit(0)"))
    assert told
    assert all("SystemExit: 0 (" in said and "given.py:" in said for said in told.values())


def test_a_method_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(answers: Any) -> Any:
        monkeypatch.setattr(prove, "SILENCE", 0.5)
        return received(answers)

    received = prove._received
    monkeypatch.setattr(prove, "_received", impatient)
    assert found(proved(tmp_path, "time.sleep(600)")) == {ENDS: "nothing within 0.5 s"}


def test_what_a_method_does_to_its_process_ends_with_it(tmp_path: Path) -> None:
    judge = method_kit._found
    assert proved(tmp_path, "kit._found = lambda check, cell: []").complete
    assert method_kit._found is judge


def test_what_is_refused_is_refused_here(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no_such_knob"):
        proved(tmp_path, "pass", knobs={"no_such_knob": 1})
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(BadPlugin, match="registers no method"):
        prove_method(tmp_path / "empty.py")


MODEL_LEAVES = """
class Leaving(llamagen.LlamaGen):
    def generate(self, *given, **more):
        os._exit(0)


"""
METRIC_LEAVES = """seen.append(shown)
        if len(seen) > 3:  # a process that looks at one batch sees nothing of it
            os._exit(0)"""


@pytest.mark.fresh_process  # else what starts processes for tests may be started by the copy, and is left behind there
@pytest.mark.parametrize("kind", ["model", "metric"])
def test_a_model_or_metric_that_ends_its_process_is_found(kind: str, tmp_path: Path) -> None:
    model = examples.MODEL.replace("llamagen.LlamaGen, CONFIG", "Leaving, CONFIG").replace("CONFIG =", MODEL_LEAVES + "CONFIG =", 1)
    metric = examples.METRIC.replace("pass", METRIC_LEAVES).replace("@registry", "seen = []\n\n\n@registry", 1)
    (tmp_path / "given.py").write_text({"model": model, "metric": metric}[kind])
    (proof,) = {"model": prove_model, "metric": prove_metric}[kind](tmp_path / "given.py")
    assert found(proof)[ENDS] == "its process ended with exit code 0"
    assert (proof.kind, proof.complete) == (kind, False)
    done = call("test", kind, tmp_path / "given.py")
    assert done.exit_code == 1
    assert "FOUND     every check comes to its end" in done.output


def test_the_command_does_not_leave_with_the_code_of_a_method(tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text(TEXT.format(does="os._exit(0)"))
    done = call("test", "method", tmp_path / "given.py")
    assert done.exit_code == 1
    assert "expected the end of the first check; found its process ended with exit code 0" in done.output
    assert "at :" not in done.output


@pytest.mark.slow
def test_where_no_copy_is_possible_an_interpreter_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert proved(tmp_path, "pass").complete
    assert found(proved(tmp_path, "os._exit(0)")) == {ENDS: "its process ended with exit code 0"}


@pytest.mark.slow
def test_that_interpreter_finds_the_packages_that_this_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_a_notebook.py").write_text("HALF = 0.5\n")
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert proved(tmp_path, "import of_a_notebook").complete
