"""Plug-ins that misbehave while their method runs: each a file of its own, with one method of the plug-in's name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HEAD = '''
import os
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import torch

from cachemark.core import registry
from cachemark.methods.window import Window

NAME = "{name}"


@registry.methods.add(NAME)
@dataclass
class Bad(Window):
    name: ClassVar[str] = NAME
    source: ClassVar[str] = "the tests"

    def begin(self, layout, sites, memory):
        misbehave()
        super().begin(layout, sites, memory)


'''


class BadPlugin(NamedTuple):
    """What the method does when a generation begins, the status in which its case ends, words of its log or footnotes, and what is told to
    have changed."""

    body: str
    status: str
    words: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def write(self, folder: Path, name: str) -> Path:
        """Its file."""
        file = folder / f"{name}.py"
        lines = self.body.strip("\n").splitlines()
        file.write_text(HEAD.format(name=name) + "def misbehave():\n" + "\n".join(f"    {line}" for line in lines) + "\n")
        return file


OTHER_FIGURES = "Figures that were made with that are not its own"
LEFT = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(__file__ + ".pid", "w") as file:
        file.write(str(os.getpid()))
    while True:
        pass
while not os.path.exists(__file__ + ".pid"):
    time.sleep(0.01)
"""
TWELVE = {
    "threads": BadPlugin("torch.set_num_threads(2)", "ok", (), ("torch's number of threads (1 → 2)",)),
    "softmax": BadPlugin("""
import torch.nn.functional as F
if F.softmax.__name__ != "sharp":
    real, tensors, log = F.softmax, torch.Tensor.softmax, torch.Tensor.log_softmax
    def sharp(x, *args, **more):
        return real(2 * x, *args, **more)
    F.softmax = sharp
    torch.Tensor.softmax = lambda x, *args, **more: tensors(2 * x, *args, **more)
    torch.Tensor.log_softmax = lambda x, *args, **more: log(2 * x, *args, **more)
""", "error", (OTHER_FIGURES,), ("torch.nn.functional.softmax",)),
    "clock": BadPlugin("""
if time.perf_counter_ns.__name__ != "half":
    real = time.perf_counter_ns
    def half():
        return real() // 2
    time.perf_counter_ns = half
""", "error", (OTHER_FIGURES,), ("the clock", "time.perf_counter_ns")),
    "dtype": BadPlugin("torch.set_default_dtype(torch.float64)", "error", (), ("torch's default dtype (torch.float32 → torch.float64)",)),
    "thread": BadPlugin("""
import threading
def spin():
    while True:
        pass
if threading.active_count() < 3:
    threading.Thread(target=spin, name="spinner", daemon=True).start()
""", "ok", (), ("threads left behind: spinner",)),
    "mode": BadPlugin("""
from torch.utils._python_dispatch import TorchDispatchMode
class Slow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
if not torch._C._len_torch_dispatch_stack():
    Slow().__enter__()
""", "error", (), ("torch's dispatch modes (0 → ",)),
    "surroundings": BadPlugin("""
os.chdir("/")
os.environ["OMP_NUM_THREADS"] = "7"
os.umask(0)
torch.set_grad_enabled(True)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.enable_flash_sdp(False)
torch.use_deterministic_algorithms(True, warn_only=True)
""", "ok", (), ("the working directory", "the environment", "TF32 in matmuls", "the flash backend of SDPA")),
    "leaver": BadPlugin(LEFT, "ok", (), ("processes left behind: 1",)),
    "pipe": BadPlugin("""
for number in range(3, 1024):
    try:
        os.write(number, b"{'done': 0}\\n7\\n\\xff")
    except OSError:
        pass
""", "error", ("It wrote into the pipe through which its outcome goes",)),
    "twins": BadPlugin("os.fork()", "ok", (), ("processes left behind",)),
    "talker": BadPlugin("raise RuntimeError('no ' * 5_000_000)", "error", ("letters are left out", "RuntimeError: no no")),
    "interrupts": BadPlugin("raise KeyboardInterrupt", "error", ("KeyboardInterrupt",)),
}  # fmt: skip
MORE = {
    "leaves": BadPlugin("os._exit(0)", "error", ("The process ended with exit code 0.",)),
    "says goodbye": BadPlugin("raise SystemExit(0)", "error", ("SystemExit",)),
    "prints": BadPlugin("os.write(1, b'x' * 50_000_000 + b'end'); os._exit(5)", "error", ("The process ended with exit code 5.", "xend")),
    "reads": BadPlugin("input()", "error", ("EOFError",)),
    "kills its keeper": BadPlugin("os.kill(os.getppid(), 9); time.sleep(100)", "error", ("signal SIGKILL",)),
    "closes everything": BadPlugin("os.closerange(3, 65536)", "error", ("Bad file descriptor",)),
    "heavy": BadPlugin("""
from cachemark.trial.child import bench
import gc
for one in gc.get_objects():
    if type(one).__name__ == "Loaded":
        for parameter in one.parameters:
            parameter.data.mul_(1.01)
""", "error", (OTHER_FIGURES,), ("weights of the model",)),
    "registrar": BadPlugin("registry.methods._entries['streaming'] = Bad", "error", (OTHER_FIGURES,),
                           ("method 'streaming' of the registry",)),
    "patches us": BadPlugin("from cachemark.metrics import fidelity; fidelity.psnr = lambda *a: torch.zeros(4)", "error", (OTHER_FIGURES,),
                            ("cachemark.metrics.compute.fidelity.psnr",)),
    "swaps code": BadPlugin("""
from cachemark.metrics import fidelity
fidelity.psnr.__code__ = (lambda a, b: a[:, 0, 0, 0]).__code__
""", "error", (OTHER_FIGURES,), ("cachemark.metrics.compute.fidelity.psnr",)),
    "own class": BadPlugin("Window.evict = lambda self, step, slots: None", "error", (), ("Window.evict",)),
    "profiles": BadPlugin("sys.setprofile(lambda *a: None)", "ok", (), ("Python's profile function",)),
    "collects": BadPlugin("import gc; gc.disable()", "ok", (), ("Python's garbage collector",)),
    "alarms": BadPlugin("""
import signal
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1000)
""", "ok", (), ("handlers of signals", "a timer")),
    "elsewhere": BadPlugin("torch.set_default_device('meta')", "error", (), ("torch's",)),
    "imports past statements": BadPlugin("""
import importlib
folder = os.path.dirname(__file__)
with open(os.path.join(folder, "beside_it.py"), "w") as file:
    file.write("")
sys.path.insert(0, folder)
importlib.import_module("beside_it")
""", "error", (OTHER_FIGURES,), ("files of the plug-in's own that no import statement names: beside_it",)),
    "limits itself": BadPlugin("import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))", "ok", (),
                               ("limits of memory and time",)),
}  # fmt: skip
