"""Errors are one short message with slug and exit code, before a store or process exists; options that are refused; suggested commands."""

import errno
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
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
from support import stages
from support.fork_server import COMMAND_LINE
from support.stages import Stage, call


def refused(result: Result, slug: str, *words: str, code: int = 2) -> None:
    """Assert one of our errors: two lines, nothing on standard output, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    problem, where = result.stderr.splitlines()
    assert problem.startswith("cachemark: ")
    assert where == f"  [{slug}; see docs/errors.md#{slug}]"
    for text in words:
        assert text in problem


@pytest.fixture(autouse=True)
def _no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage without any run."""
    return stages.stage(tmp_path / "stage")


def untouched(stage: Stage) -> bool:
    return not [file for file in stage.folder.iterdir() if file.name.startswith(stage.store.name)]


@pytest.mark.parametrize(("plan", "slug"), [("nowhere.toml", "bad-plan"), ("dmeo", "unknown-name"), (".", "unknown-name")])
def test_a_missing_plan(plan: str, slug: str) -> None:
    refused(call("run", plan), slug)
    assert not list(Path().iterdir())


def test_a_missing_method_and_a_plan_without_quality(stage: Stage) -> None:
    refused(stage.run("--method", "clam"), "unknown-name", "cachemark: --method clam: Unknown method 'clam'", "Did you mean 'calm'?")
    refused(stage.call("share", "1/2"), "unsupported", "No case of plan dots has a quality pass", "A table [quality]")
    assert untouched(stage)


@pytest.mark.parametrize("key", ["weights", "decoder_weights"])
def test_a_wrong_checkpoint_is_refused_before_the_database_is_made(key: str, stage: Stage) -> None:
    file = stage.folder / "wrong.safetensors"
    save_file(LlamaGen(replace(TINY, layers=TINY.layers - 1)).state_dict(), file)
    stage.plan.write_text(f'name = "tiny"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n{key} = "{file}"\n')
    refused(stage.run(), "bad-checkpoint", f"{stage.plan}:", str(file))
    assert untouched(stage)


@pytest.mark.parametrize("command", [["report"], ["show"], ["check"], ["list", "runs"], ["baseline", "save"]], ids=" ".join)
def test_a_missing_or_foreign_store_is_not_made_or_changed(command: list[str], stage: Stage) -> None:
    refused(call(*command, "--store", stage.store), "bad-store", "There is no store")
    assert untouched(stage)
    with closing(sqlite3.connect(stage.store)) as connection, connection:
        connection.execute("CREATE TABLE invoices (id)")
    before = stage.store.read_bytes()
    for result in (stage.run(), call(*command, "--store", stage.store)):
        refused(result, "bad-store", str(stage.store), "invoices")
    assert stage.store.read_bytes() == before


@pytest.mark.parametrize("command", [["report"], ["show"], ["check"], ["baseline", "save"]], ids=" ".join)
def test_a_missing_run(command: list[str], measured: Stage, stage: Stage) -> None:
    refused(call(*command, "--store", measured.store, "--run", 99), "bad-store", "There is no run 99", "The newest is 1.")
    Store.open(stage.store).close()
    refused(call(*command, "--store", stage.store), "nothing-measured", "holds no run", code=4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_the_machines_fault(stage: Stage) -> None:
    refused(stage.run("--device", "cuda"), "infrastructure", "no CUDA device", code=5)
    assert untouched(stage)


@pytest.mark.parametrize(("arguments", "words"), [
    (["rnu"], "No such command 'rnu'. Did you mean 'run'?"), (["bench"], "Use one of: advise, "),
    (["db", "save"], "Use one of: check, backup, merge, prune."),
    (["run", "demo", "--budget", "1/4"], "Commands with this option: generate, measure, roofline."),
    (["share", "demo", "2"], "'2' is not a share"),
    (["run", "demo", "--reuse-quality"], "--reuse-quality needs --fresh"),
    (["run", "demo", "--gpu", "all"], "Add --device cuda"),
    (["run", "demo", "--store", "postgresql+psycopg://me:secret@host/runs"], "Set CACHEMARK_STORE"),
    (["run", "demo", "--store", "postgresql+psycopg://host/runs?password=secret"], "Set CACHEMARK_STORE"),
    (["baseline", "promote"], "Missing option '--reason'"), (["baseline", "rebase"], "Missing option '--reason'"),
    (["report", "--days", "3"], "--days needs --site."),
    (["report", "page.html", "--site", "pages"], "Leave out PATH"), (["report", "--run", "1", "--site", "pages"], "Leave out PATH"),
    (["run", "demo", "--report", "no/page.html"], "folder no does not exist"),
    *((["run", "demo", option, wrong], f"Invalid value for '{option}'") for option, wrong in (
        ("--time", "six hours"), ("--time", "6"), ("--memory-cap", "24"), ("--memory-cap", "24 potatoes"), ("--memory-cap", "0GiB"))),
    *((["run", "demo", f"--price={price}"], "is not a price per hour; write 2.49/h.") for price in ("2.49", "-1/h", "nan/h")),
    (["compare", "demo"], "Use exactly one of --cases A B"),
    (["compare", "demo", "--cases", "a", "b", "--env", "a", "b"], "Use exactly one of --cases A B"),
    (["compare", "demo", "--cases", "a", "b", "--only", "full"], "so --only has no effect. Leave out one of the two."),
    *((["generate", "tiny-t2i", *options], words) for options, words in (
        (("--images", "2", "--seed", "1"), "--images and --seed cannot be combined"),
        (("--compare",), "Add --method, --codec or --decoder"), (("--budget", "1/2"), "Name a method, or leave it out"),
        (("--sampling", "temperature=x"), "'temperature=x' is neither NAME=NUMBER"),
        (("--sampling", "greedy", "--sampling", "top_k=1"), "'greedy' is neither NAME=NUMBER"),
        (("--method", "window", "--compare", "-o", "out.npz"), "A sample batch holds the images of one method"),
        (("-o", "nowhere/out.png"), "folder nowhere does not exist"), (("--method", "mine", "--plugin", "nowhere.py"), "nowhere.py"),
        (("--label", "3"), "tiny-t2i draws prompts, not classes. Write --prompt TEXT"),
        (("--prompt", "two read stars"), "Unknown word of a caption 'read'"))),
    (["generate", "tiny-var", "--prompt", "two red stars"], "tiny-var draws classes 0 … 9, not prompts. Write --label 3"),
    (["measure", "tiny-var"], "Missing option '--method'"), (["measure", "tiny-vra", "--method", "window"], "Did you mean 'tiny-var'?"),
    (["measure", "tiny-var", "--method", "nowhere.py"], "nowhere.py"),
    *((["roofline", *options], words) for options, words in (
        (("llamagen-b", "--dtype", "float32"), "16 bit"), (("llamagen-b", "--card", "h10"), "h100"),
        (("llamagen-b", "--card", "h100", "--here"), "cannot be combined"),
        (("llamagen-b", "--card", "custom"), "Add --bandwidth and --flops"), (("llamagen-b", "--flops", "9TFLOP/s"), "Add --card custom"),
        (("llamagen-b", "--card", "custom", "--bandwidth", "fast", "--flops", "9TFLOP/s"), "write 1.8TB/s"),
        (("llamagen-b", "--budget", "onw"), "'onw' is not a number. Did you mean 'own'?"),
        (("llamagen-b", "--steps", "9"), "llamagen-b is a next-token model, whose passes follow from its tokens"),
        (("mar-b", "--steps", "257"), "Use 1 … 256 steps"), (("var-d16", "--decoder", "jacobi=4"), "next-token models"),
        (("llamagen-b", "--decoder", "jacobi=16", "--tokens-per-pass", "40"), "Use 1 … 16"),
        (("llamagen-b", "--decoder", "jacoby=4"), "'jacobi'"), (("llamagen-b", "--tokens-per-pass", "2"), "needs --decoder"),
        (("llamagen-b", "--decoder", "jacobi=4,far"), "jacobi=16,look_ahead"))),
    *((["advise", "--model", model, "--card", gpu, "--max-loss", loss], words) for model, gpu, loss, words in (
        ("llamagen-xxxl", "h100", "0.1", "Did you mean"), ("llamagen-xl", "h10", "0.1", "Did you mean"),
        ("llamagen-xl", "h100", "2", "x<1"), ("llamagen-xl", "h100", "0", "x<1"))),
])  # fmt: skip
def test_a_wrong_call_is_refused_and_writes_nothing(arguments: list[str], words: str) -> None:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "secret" not in result.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("text", "value"), [
    ("6h", 21600), ("90min", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800), ("24GiB", 24 << 30), ("0.5mib", 1 << 19), ("24MB", 24e6),
])  # fmt: skip
def test_times_and_sizes_have_units(text: str, value: float) -> None:
    parse = size if text[-1] in "Bb" else span
    assert parse(click.Context(click.Command("run")), click.Option(["--x"]), text) == value


@pytest.mark.parametrize(("arguments", "redirected"), [
    (("show", "--store", "nowhere.sqlite"), "2>/dev/full"), (("--wrong", "show"), ">&- 2>&-")])
def test_an_error_that_nobody_reads_keeps_its_code(arguments: tuple[str, ...], redirected: str) -> None:
    command = f'exec "$0" -c "{COMMAND_LINE}" "$@" {redirected}'
    done = subprocess.run(["sh", "-c", command, sys.executable, *arguments], check=False, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode == 2, "1 would be a verdict"


@pytest.mark.parametrize(("raised", "code"), [
    (KeyboardInterrupt(), INTERRUPTED), (click.UsageError("no"), 2), (NothingMeasured("no"), 4), (ZeroDivisionError("no"), 70),
    (BrokenPipeError(), 141),
])  # fmt: skip
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
    """Return the arguments of the suggested command of that name."""
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
    assert suggested(call("check", "--baseline", "absent.json").stderr, "baseline") == ["baseline", "save"]


@pytest.mark.parametrize("error", [
    MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"),
    OSError(12, "Cannot allocate memory"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_memory_that_is_used_up_is_the_machines_fault(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """As under a limit of the shell, ``ulimit -v``."""
    with pytest.raises(SystemExit) as ended, ending():
        raise error
    assert ended.value.code == 5
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("cachemark: This machine is out of memory, or a limit (ulimit -v) is reached. Free some")
    assert second == "  [infrastructure; see docs/errors.md#infrastructure]"


def test_no_file_takes_the_descriptor_of_a_closed_stream(tmp_path: Path) -> None:
    """A library that writes to descriptor 2 must not write into a store."""
    script = "import os, sys; from cachemark.cli.endings import open_closed_streams\nopen_closed_streams()\nos.write(2, b'x')"
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, script], check=False, cwd=tmp_path)
    assert done.returncode == 0


def test_closed_standard_streams_are_a_plug_ins_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"), ending():
        raise OSError(errno.EBADF, "Bad file descriptor")
    assert "A plug-in closed the standard streams." in capsys.readouterr().err
