"""Errors are one short message with slug and exit code, before a store or process exists; options that are refused; suggested commands."""

import errno
import os
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from cachemark.cli.endings import INTERRUPTED, ending
from cachemark.cli.measure import span
from cachemark.cli.options import size
from cachemark.core.errors import NothingMeasured
from cachemark.models.catalogue.next_token import TINY
from cachemark.models.llamagen import LlamaGen
from cachemark.store.db import Store
from cachemark.workflows.pending import ABSENT
from support.fork_server import COMMAND_LINE
from support.stages import Stage, call, data

pytestmark = pytest.mark.usefixtures("no_child")


def refused(result: Result, slug: str, *words: str, code: int = 2) -> None:
    """Assert one of our errors: two lines, nothing on standard output, no traceback."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    problem, where = result.stderr.splitlines()
    assert problem.startswith("cachemark: ")
    assert where == f"  [{slug}; see docs/errors.md#{slug}]"
    for text in words:
        assert text in problem


def untouched(stage: Stage) -> bool:
    return not [file for file in stage.folder.iterdir() if file.name.startswith(stage.store.name)]


def test_a_missing_method_and_a_plan_without_quality(unrun: Stage) -> None:
    refused(unrun.run("--method", "clam"), "unknown-name", "cachemark: --method clam: Unknown method 'clam'", "Did you mean 'calm'?")
    refused(unrun.call("share", "1/2"), "unsupported", "No case of plan dots has a quality pass", "A table [quality]")
    assert untouched(unrun)


@pytest.mark.parametrize("key", ["weights", "decoder_weights"])
def test_a_wrong_checkpoint_is_refused_before_the_database_is_made(key: str, unrun: Stage) -> None:
    file = unrun.folder / "wrong.safetensors"
    save_file(LlamaGen(replace(TINY, layers=TINY.layers - 1)).state_dict(), file)
    unrun.plan.write_text(f'name = "tiny"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n{key} = "{file}"\n')
    refused(unrun.run(), "bad-checkpoint", f"{unrun.plan}:", str(file))
    assert untouched(unrun)


@pytest.mark.parametrize("command", [["report"], ["show"], ["check"], ["baseline", "save"]], ids=" ".join)
def test_a_missing_store_or_run(command: list[str], measured: Stage, unrun: Stage) -> None:
    refused(call(*command, "--store", unrun.store), "bad-store", "There is no store")
    assert untouched(unrun)
    refused(call(*command, "--store", measured.store, "--run", 99), "bad-store", "There is no run 99", "The newest is 1.")
    Store.open(unrun.store).close()
    refused(call(*command, "--store", unrun.store), "nothing-measured", "holds no run", code=4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_the_machines_fault(unrun: Stage) -> None:
    refused(unrun.run("--device", "cuda"), "infrastructure", "no CUDA device (torch ", "Use --device cpu", code=5)
    refused(call("price", "linear-table4", "--device", "cuda"), "infrastructure", "no CUDA device (torch ", "--card h100", code=5)
    explained = data(unrun.call("explain", "--device", "cuda", "--json"))
    assert {(row["action"], row["reason"]) for row in explained} == {("run", ABSENT)}, "what would run needs no device"
    assert untouched(unrun)


@pytest.mark.parametrize(("arguments", "words"), tomllib.loads(Path(__file__).with_name("wrong_calls.toml").read_text("utf-8")).items())
def test_a_wrong_call_is_refused_and_writes_nothing(arguments: str, words: str) -> None:
    result = call(*shlex.split(arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "secret" not in result.stderr
    assert not list(Path().iterdir())


def test_times_and_sizes_have_units() -> None:
    for parse, values in ((span, {"6h": 21600, "90min": 5400, "1h30m": 5400, "45s": 45, "0.5h": 1800}),
                          (size, {"24GiB": 24 << 30, "0.5mib": 1 << 19, "24MB": 24e6})):
        assert {text: parse(click.Context(click.Command("run")), click.Option(["--x"]), text) for text in values} == values


@pytest.mark.parametrize(("arguments", "redirected"), [
    (("show", "--store", "nowhere.sqlite"), "2>/dev/full"), (("--wrong", "show"), ">&- 2>&-")])
def test_an_error_that_nobody_reads_keeps_its_code(arguments: tuple[str, ...], redirected: str) -> None:
    command = f'exec "$0" -c "{COMMAND_LINE}" "$@" {redirected}'
    done = subprocess.run(["sh", "-c", command, sys.executable, *arguments], check=False, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode == 2, "1 would be a verdict"


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), INTERRUPTED), (click.UsageError("no"), 2), (NothingMeasured("no"), 4),
                                              (ZeroDivisionError("no"), 70), (BrokenPipeError(), 141)])
def test_pipes_that_nobody_reads_change_no_code(raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, name, os.fdopen(writer, "w"))
    sys.stdout.write("words that were not written yet")
    with pytest.raises(SystemExit) as caught, ending():
        raise raised
    assert caught.value.code == code
    sys.stdout.flush()  # as Python does at its end, where a failure makes another code


def suggested(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if f"cachemark {name}" in line)
    return shlex.split(line[line.index(f"cachemark {name}") :].removeprefix("cachemark "))


def test_a_remedy_names_the_given_store(measured: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = measured.copy(tmp_path / "copy")
    store = stage.store.rename(stage.folder / "a store.sqlite")
    text = call("check", "--store", store, "--propose", "proposed").stdout
    assert suggested(text, "baseline") == ["baseline", "save", "--store", str(store), "--run", "1"]
    assert call(*suggested(call("check", "--store", store).stderr, "baseline save")).exit_code == 0
    assert call("check", "--store", store).exit_code == 0
    result = call("baseline", "promote", "--store", store, "--root", "kept", "--name", "mine", "--reason", "better")
    assert f"cachemark baseline save --store '{store}' --root kept --name mine\n" in result.stderr
    monkeypatch.setenv("CACHEMARK_STORE", str(store))
    absent = "check", "--baseline", "absent.json"
    assert suggested(call(*absent).stderr, "baseline") == ["baseline", "save", "--store", str(store)], "the variable is that of a job"
    monkeypatch.setenv("CACHEMARK_STORE", "postgresql+psycopg://me:secret@127.0.0.1:9/runs")
    assert "secret" not in call(*absent).output


@pytest.mark.parametrize("error", [
    MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"),
    OSError(12, "Cannot allocate memory")], ids=lambda error: type(error).__name__)
def test_memory_that_is_used_up_is_the_machines_fault(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """As under a limit of the shell, ``ulimit -v``."""
    with pytest.raises(SystemExit) as ended, ending():
        raise error
    assert ended.value.code == 5
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("cachemark: This machine is out of memory, or a limit (ulimit -v) is reached. Free some")
    assert second == "  [infrastructure; see docs/errors.md#infrastructure]"


def test_closed_streams_are_a_plug_ins_fault_and_no_file_takes_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A library that writes to descriptor 2 must not write into a store."""
    script = "import os, sys; from cachemark.cli.endings import open_closed_streams\nopen_closed_streams()\nos.write(2, b'x')"
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, script], check=False, cwd=tmp_path)
    assert done.returncode == 0
    with pytest.raises(SystemExit, match="2"), ending():
        raise OSError(errno.EBADF, "Bad file descriptor")
    assert "A plug-in closed the standard streams." in capsys.readouterr().err
