"""The state that all cases of one process share: settings of torch and of Python, clocks, functions, threads and processes.

A method that changes any of it changes the cases after it. Here it is read before and after, put back where that is possible, and told.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns
from typing import Any, NamedTuple

import torch
from torch.overrides import _pop_mode as _pop_function_mode
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

from ..core import registry
from ..decoders.registry import DECODERS
from ..methods.registry import METHODS
from ..models.registry import MODELS
from .keeper import descendants
from .shared_functions import SharedFunctions

SKEW = 0.01  # share by which two clocks of this machine may differ; a network that sets the time slews it by 0.0005
LEAST_SKEW = 2_000_000  # nanoseconds: the readings themselves take time
READINGS, AT_ONCE = 50, 100_000  # of two clocks, at most, and nanoseconds within which both are read at one moment
NAMED = 5  # of what is replaced; the rest is counted
LIBRARIES = ("tqdm", "torch")  # whose threads stay when they are done with; they sleep
SET_BY_TORCH = {"CUDA_MODULE_LOADING", "CUDA_HOME", "TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
                "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_PATH"}
"""Variables of the environment that torch sets when it first turns to a device, or first compiles."""
COMPILING = 2_000  # Python's recursion limit, to which torch raises a lower one when it compiles
VENDORED = os.path.join("setuptools", "_vendor")  # end of a folder that setuptools, which torch's compiler imports, adds to the path


class Impact(IntEnum):
    """The harm of a change to the figures of the very case that made it."""

    NONE = 0
    TIMES = 1
    """It is faster or slower by it than what it is compared with."""
    FIGURES = 2
    """What its figures are computed with is not what it was."""


class Change(NamedTuple):
    """One thing that is no longer what it was, in words."""

    what: str
    impact: Impact = Impact.NONE
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.before} → {self.after})" if self.before or self.after else self.what


class Setting(NamedTuple):
    """A global of the process: how it is read, and set where that is possible."""

    what: str
    impact: Impact
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _modes(count: Callable[[], int], pop: Callable[[], object]) -> tuple[Callable[[], int], Callable[[int], None]]:
    def down_to(depth: int) -> None:
        while count() > depth:
            pop()

    return count, down_to


def _set_environment(variables: dict[str, str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name in SET_BY_TORCH}
    os.environ.clear()
    os.environ.update(variables | kept)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in SET_BY_TORCH}


def _set_path(before: list[str]) -> None:
    sys.path[:] = [*before, *(folder for folder in sys.path if folder.endswith(VENDORED))]


def _path() -> list[str]:
    return [folder for folder in sys.path if not folder.endswith(VENDORED)]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler and handler is not None:
            signal.signal(number, handler)


def _set_collector(state: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if state[0] else gc.disable)()
    gc.set_threshold(*state[1])


def _limits() -> dict[int, tuple[int, int]]:
    return {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU)}


def _subnormal() -> bool:
    """True where numbers below the smallest normal one are flushed to nought."""
    return bool(torch.tensor(1e-40, dtype=torch.float32, device="cpu").mul(1.0) == 0)


_cuda, _cudnn, _matmul = torch.backends.cuda, torch.backends.cudnn, torch.backends.cuda.matmul
SETTINGS = (
    Setting("torch's function modes", Impact.FIGURES, *_modes(torch._C._len_torch_function_stack, _pop_function_mode)),
    Setting("torch's dispatch modes", Impact.FIGURES, *_modes(torch._C._len_torch_dispatch_stack, _pop_dispatch_mode)),
    Setting("torch's default dtype", Impact.FIGURES, torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch's default device", Impact.FIGURES, torch.get_default_device),
    Setting("torch's autocast on the CPU", Impact.FIGURES, lambda: torch.is_autocast_enabled("cpu"),
            lambda on: torch.set_autocast_enabled("cpu", on)),
    Setting("torch's autocast on CUDA", Impact.FIGURES, lambda: torch.is_autocast_enabled("cuda"),
            lambda on: torch.set_autocast_enabled("cuda", on)),
    Setting("flushing of subnormal numbers", Impact.FIGURES, _subnormal, torch.set_flush_denormal),
    Setting("torch's inference mode", Impact.FIGURES, torch.is_inference_mode_enabled),
    Setting("torch's number of threads", Impact.TIMES, torch.get_num_threads, torch.set_num_threads),
    Setting("torch's number of threads between operations", Impact.TIMES, torch.get_num_interop_threads),
    Setting("torch's matmul precision", Impact.TIMES, torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("TF32 in matmuls", Impact.TIMES, *_attribute(_matmul, "allow_tf32")),
    Setting("TF32 in cuDNN", Impact.TIMES, *_attribute(_cudnn, "allow_tf32")),
    Setting("cuDNN", Impact.TIMES, *_attribute(_cudnn, "enabled")),
    Setting("cuDNN's benchmark", Impact.TIMES, *_attribute(_cudnn, "benchmark")),
    Setting("cuDNN's deterministic flag", Impact.TIMES, *_attribute(_cudnn, "deterministic")),
    Setting("torch's deterministic flag", Impact.TIMES,
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            lambda held: torch.use_deterministic_algorithms(held[0], warn_only=held[1])),
    Setting("the flash backend of SDPA", Impact.TIMES, _cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    Setting("the memory-efficient backend of SDPA", Impact.TIMES, _cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    Setting("the math backend of SDPA", Impact.TIMES, _cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    Setting("the cuDNN backend of SDPA", Impact.TIMES, _cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
    Setting("oneDNN", Impact.TIMES, torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    Setting("torch's profiler", Impact.TIMES, torch.autograd._profiler_enabled),
    Setting("torch's anomaly mode", Impact.TIMES, torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    Setting("torch's grad mode", Impact.NONE, torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("the nice level", Impact.TIMES, lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda level: os.setpriority(os.PRIO_PROCESS, 0, level)),
    Setting("the processors", Impact.TIMES, lambda: os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else (),
            lambda held: os.sched_setaffinity(0, held)),
    Setting("limits of memory and time", Impact.TIMES, _limits),
    Setting("Python's profile function", Impact.TIMES, sys.getprofile, sys.setprofile),
    Setting("Python's trace function", Impact.TIMES, sys.gettrace, sys.settrace),
    Setting("Python's garbage collector", Impact.TIMES, lambda: (gc.isenabled(), gc.get_threshold()), _set_collector),
    Setting("Python's switch interval", Impact.TIMES, sys.getswitchinterval, sys.setswitchinterval),
    Setting("Python's recursion limit", Impact.NONE, lambda: max(sys.getrecursionlimit(), COMPILING), sys.setrecursionlimit),
    Setting("Python's search path", Impact.NONE, _path, _set_path),
    Setting("the working directory", Impact.NONE, os.getcwd, os.chdir),
    Setting("the environment", Impact.NONE, _environment, _set_environment),
    Setting("the umask", Impact.NONE, _umask, os.umask),
    Setting("handlers of signals", Impact.NONE, _handlers, _set_handlers),
    Setting("a timer", Impact.NONE, lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
            lambda on: None if on else signal.setitimer(signal.ITIMER_REAL, 0)),
)
TABLES: tuple[registry.Registry[Any], ...] = (METHODS, MODELS, DECODERS)
QUIET = (dict, list)  # types of values that are not told: they are long, or may be secret


class SharedState:
    """Everything that the cases of this process share, as it is now."""

    def __init__(self) -> None:
        self._settings = {setting.what: _read(setting) for setting in SETTINGS}
        self._functions = SharedFunctions()
        self._tables = [(table, table.entries()) for table in TABLES]
        self._threads = set(sys._current_frames())
        self._processes = descendants()
        self._clocks = _clocks()

    def changes(self) -> list[Change]:
        """Everything that is different from what it was."""
        settings = [(setting, self._settings[setting.what], _read(setting)) for setting in SETTINGS]
        found = [Change(setting.what, setting.impact, *_told(before, after)) for setting, before, after in settings if before != after]
        if skew := self._skew():
            found.append(Change("the clock", Impact.FIGURES, "1 s", f"{skew:.3g} s"))
        found += [Change(f"{table.kind} {name!r} of the registry", Impact.FIGURES) for table, held in self._tables
                  for name, thing in held.items() if table.entries().get(name) is not thing]
        if replaced := sorted(one.name for one in self._functions.replaced()):
            more = f" and {len(replaced) - NAMED} more" if len(replaced) > NAMED else ""
            found.append(Change(f"{', '.join(replaced[:NAMED])}{more} (replaced)", Impact.FIGURES))
        if names := [name for number, name in _threads() if number not in self._threads]:
            found.append(Change(f"threads left behind: {', '.join(sorted(names)[:NAMED])}"))
        if left := descendants() - self._processes:
            found.append(Change(f"processes left behind: {len(left)}"))
        return found

    def extend(self) -> None:
        """Take in the functions of what has been imported since."""
        self._functions.extend()

    def restore(self) -> None:
        """Put back what can be put back. Threads and processes stay."""
        for one in self._functions.replaced():
            one.put_back()
        for table, held in self._tables:
            if any(table.entries().get(name) is not thing for name, thing in held.items()):
                table.restore({**table.entries(), **held})
        for setting in SETTINGS:
            before = self._settings[setting.what]
            if setting.write is not None and not isinstance(before, _Unread) and _read(setting) != before:
                with suppress(Exception):  # what cannot be put back is told by the next look
                    setting.write(before)

    def _skew(self) -> float:
        """Seconds that the clock of measurements has gone in a second of another one, where that is not one; else 0."""
        own, other = (now - then for now, then in zip(_clocks(), self._clocks, strict=True))
        return own / other if other and abs(own - other) > max(LEAST_SKEW, SKEW * other) else 0.0


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put back, when the block ends, what it has changed of the state that is shared."""
    state = SharedState()
    try:
        yield
    finally:
        state.restore()


class _Unread(NamedTuple):
    """The reason why a setting has no value."""

    error: str


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception as error:  # such as the flags of TF32, which torch refuses to tell once they were set in two ways
        return _Unread(type(error).__name__)


def _told(before: object, after: object) -> tuple[str, str]:
    if isinstance(before, QUIET) or isinstance(after, QUIET):
        return "", ""
    one, two = ("not to be read" if isinstance(value, _Unread) else str(value)[:60] for value in (before, after))
    return one, two


def _clocks() -> tuple[int, int]:
    """The clock of measurements and another one at one moment, nanoseconds: a busy machine may put this process aside between two readings,
    so the second is read before and after the first, until that takes next to no time."""
    readings = list[tuple[int, int, int]]()
    while len(readings) < READINGS and (not readings or readings[-1][0] > AT_ONCE):
        before, own, after = clock_gettime_ns(CLOCK_MONOTONIC_RAW), time.perf_counter_ns(), clock_gettime_ns(CLOCK_MONOTONIC_RAW)
        readings.append((after - before, own, (before + after) // 2))
    return min(readings)[1:]


def _threads() -> list[tuple[int, str]]:
    """Threads of Python that somebody may have started, with their names."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for number in sys._current_frames():
        thread = known.get(number)
        made_by = getattr(thread, "_target", None) if type(thread) is threading.Thread else type(thread)
        if not str(getattr(made_by, "__module__", "")).startswith(LIBRARIES):
            found.append((number, thread.name[:40] if thread else "one without a name"))
    return found
