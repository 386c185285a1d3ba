"""The state that the cases of a process share: every change is told in words with its impact, and put back."""

from __future__ import annotations

import builtins
import gc
import importlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import cachemark.decoders  # noqa: F401 - registers what is built in
from cachemark.decoders.registry import DECODERS
from cachemark.machine.shared_state import SETTINGS, Impact, SharedState, undisturbed
from cachemark.methods.registry import METHODS
from cachemark.methods.window import Window
from cachemark.metrics.compute import fidelity
from cachemark.models.registry import MODELS

NONE, TIMES, FIGURES = Impact


def rebound(owner: Any, name: str, value: Any = lambda *args, **more: None) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def set_by(name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(torch.backends.cuda.matmul, name, value)


def swapped() -> None:
    fidelity.psnr.__code__ = (lambda images, reference: images).__code__


CHANGES: dict[str, tuple[Callable[[], object], str, Impact]] = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), "torch's default dtype (torch.float32 → torch.float64)", FIGURES),
    "device": (lambda: torch.set_default_device("meta"), "torch's default device (cpu → meta)", FIGURES),
    "threads": (lambda: torch.set_num_threads(3), "torch's number of threads (1 → 3)", TIMES),
    "TF32": (set_by("allow_tf32", True), "TF32 in matmuls (False → True)", TIMES),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), "torch's matmul precision (highest → medium)", TIMES),
    "precision set in two ways": (set_by("fp32_precision", "tf32"), "TF32 in matmuls (False → not to be read)", TIMES),
    "flash": (lambda: torch.backends.cuda.enable_flash_sdp(False), "the flash backend of SDPA (True → False)", TIMES),
    "math": (lambda: torch.backends.cuda.enable_math_sdp(False), "the math backend of SDPA (True → False)", TIMES),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), "torch's deterministic flag", TIMES),
    "grad": (lambda: torch.set_grad_enabled(False), "torch's grad mode (True → False)", NONE),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), "torch's autocast on the CPU (False → True)", FIGURES),
    "subnormal": (lambda: torch.set_flush_denormal(True), "flushing of subnormal numbers (False → True)", FIGURES),
    "anomaly": (lambda: torch.set_anomaly_enabled(True), "torch's anomaly mode (False → True)", TIMES),
    "a mode left on": (lambda: FlopCounterMode(display=False).__enter__(), "torch's dispatch modes (0 → 1)", FIGURES),
    "folder": (lambda: os.chdir("/"), "the working directory", NONE),
    "variable": (lambda: os.environ.update(OF_A_PLUG_IN="a secret"), "the environment", NONE),
    "umask": (lambda: os.umask(0o777), "the umask", NONE),
    "path": (lambda: sys.path.insert(0, "/nowhere"), "Python's search path", NONE),
    "collector": (gc.disable, "Python's garbage collector", TIMES),
    "recursion": (lambda: sys.setrecursionlimit(9_999), "Python's recursion limit", NONE),
    "switching": (lambda: sys.setswitchinterval(0.5), "Python's switch interval", TIMES),
    "handler": (lambda: signal.signal(signal.SIGUSR2, lambda *a: None), "handlers of signals", NONE),
    "softmax": (rebound(F, "softmax"), "torch.nn.functional.softmax (replaced)", FIGURES),
    "a method of tensors": (rebound(torch.Tensor, "softmax"), "torch.Tensor.softmax (replaced)", FIGURES),
    "a layer": (rebound(torch.nn.Linear, "forward"), "Linear.forward (replaced)", FIGURES),
    "a function of ours": (rebound(fidelity, "psnr"), "cachemark.metrics.compute.fidelity.psnr (replaced)", FIGURES),
    "the inside of one": (swapped, "cachemark.metrics.compute.fidelity.psnr (replaced)", FIGURES),
    "a builtin hidden": (rebound(fidelity, "sum"), "cachemark.metrics.compute.fidelity.sum (replaced)", FIGURES),
    "a class of ours": (rebound(Window, "evict"), "Window.evict (replaced)", FIGURES),
    "an inherited method": (rebound(Window, "attend"), "Window.attend (replaced)", FIGURES),
    "a number of ours": (rebound(Window, "evicts", 0), "Window.evicts (replaced)", FIGURES),
    "a slow clock": (rebound(time, "perf_counter_ns", lambda real=time.perf_counter_ns: real() // 2), "the clock (1 s → ", FIGURES),
    "mathematics": (rebound(math, "sqrt"), "math.sqrt (replaced)", FIGURES),
    "chance": (rebound(random, "Random"), "random.Random (replaced)", FIGURES),
    "a builtin": (rebound(builtins, "round"), "builtins.round (replaced)", FIGURES),
    "a method of the registry": (lambda: METHODS._entries.update(window=Window(8)), "method 'window' of the registry", FIGURES),
    "a decoder less": (lambda: DECODERS._entries.pop("jacobi"), "decoder 'jacobi' of the registry", FIGURES),
    "a model less": (lambda: MODELS._entries.pop("tiny-var"), "model 'tiny-var' of the registry", FIGURES),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_put_back(name: str) -> None:
    change, told, impact = CHANGES[name]
    state = SharedState()  # not in a fixture: pytest names the stage of a test in the environment
    assert state.changes() == []
    try:
        change()
        found = state.changes()
    finally:
        state.restore()
    assert any(told in str(one) and one.impact is impact for one in found), [str(one) for one in found]
    assert "a secret" not in "".join(map(str, found))
    assert state.changes() == []


def test_threads_and_processes_that_are_left_are_told() -> None:
    state, over = SharedState(), threading.Event()
    thread = threading.Thread(target=over.wait, name="idle")
    thread.start()
    try:
        assert [str(one) for one in state.changes()] == ["threads left behind: idle"]
    finally:
        over.set()
        thread.join()
    assert state.changes() == []


def test_what_only_grows_is_no_change() -> None:
    """New names in a module, imports, torch's own wrapper around one of its functions."""
    state = SharedState()
    importlib.import_module("torch._dynamo")  # wraps torch.manual_seed when it is first imported
    torch.of_a_plug_in = lambda: None  # type: ignore[attr-defined]
    try:
        assert [one for one in state.changes() if one.impact is FIGURES] == []
    finally:
        del torch.of_a_plug_in  # type: ignore[attr-defined]


COMPILES = """
import os, sys, torch
from cachemark.machine.shared_state import SharedState

state, layer, before = SharedState(), torch.nn.Linear(2, 2), torch.nn.Module.__init__
compiled = torch.compile(layer, backend="eager")
assert torch.equal(compiled(torch.ones(1, 2)), layer(torch.ones(1, 2)))
assert torch.nn.Module.__init__ is not before, "the compiler puts its own around it"
sys.setrecursionlimit(2000)
sys.path.append(os.path.join("somewhere", "setuptools", "_vendor"))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = "somewhere"
assert state.changes() == [], [str(change) for change in state.changes()]
os.environ["OTHER"] = "1"
state.restore()
assert "OTHER" not in os.environ
assert os.environ["TORCHINDUCTOR_CACHE_DIR"] and sys.path[-1].endswith("_vendor"), "it reads them later"
inner = torch.nn.Module.__init__
torch.nn.Module.__init__ = lambda *given, **more: inner(*given, **more)
assert [str(change) for change in state.changes()] == ["torch.nn.modules.module.Module.__init__ (replaced)"]
"""


def test_what_the_compiler_of_torch_leaves_is_no_change() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_block_leaves_no_trace() -> None:
    state = SharedState()
    with undisturbed():
        torch.set_default_dtype(torch.float64)
        os.environ["OF_A_PLUG_IN"] = "1"
    assert state.changes() == []


def test_settings_have_names_of_their_own() -> None:
    assert len({setting.what for setting in SETTINGS}) == len(SETTINGS)


def test_a_process_that_is_put_aside_between_two_readings_has_the_right_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a busy machine does with it: a pause of 20 ms between the clocks is no clock that goes wrong."""
    state, read, asked = SharedState(), time.perf_counter_ns, []

    def late() -> int:
        asked.append(1)
        if len(asked) in (1, 2):
            time.sleep(0.02)
        return read()

    monkeypatch.setattr(time, "perf_counter_ns", late)
    assert [str(change) for change in state.changes() if "clock" in str(change)] == []
    assert len(asked) >= 3, "read until nothing came between"
