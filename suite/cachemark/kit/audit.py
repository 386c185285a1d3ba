"""Requests of a method to Python while it runs: threads, processes, files, the objects of others, and calls where it has no part.

Python raises an audit event before each of these (PEP 578). A hook cannot be taken away again, so there is one in a process, which looks
only while somebody listens."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from types import FrameType
from typing import Any

from ..core.plugin_modules import MODULE, plugin_of

STARTS = {"_thread.start_new_thread": "starts a thread", "_thread.start_joinable_thread": "starts a thread",
          "subprocess.Popen": "starts a process", "os.fork": "starts a process", "os.posix_spawn": "starts a process",
          "os.system": "starts a process", "os.exec": "starts a process"}  # fmt: skip
READS = {"open": "opens a file", "socket.connect": "connects to a network", "sqlite3.connect": "opens a database",
         "gc.get_objects": "looks through all objects of the process", "gc.get_referrers": "looks for who holds an object",
         "gc.get_referents": "looks into objects of others", "sys._current_frames": "looks into the calls of others",
         "sys._getframe": "looks into the calls of others"}  # fmt: skip
IMPORTING = "importlib._bootstrap"
SOURCES = ("linecache", "tokenize")  # read the lines that a warning or a traceback shows
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # read and write files, and start the compilers of C++ and of CUDA
Own = Callable[[FrameType], bool]
_listeners: list[tuple[Own, dict[str, str]]] = []


def frames_of(cls: type) -> Own:
    """Says of a frame whether it runs code of the plug-ins that a class and its bases come from; of one that is built in, of their
    modules."""
    plugins = {plugin_of(base.__module__) for base in cls.__mro__ if plugin_of(base.__module__).startswith(MODULE)}
    modules = plugins or {base.__module__ for base in cls.__mro__ if ".methods." in base.__module__}
    return lambda frame: plugin_of(str(frame.f_globals.get("__name__", ""))) in modules


def called_from(own: Own) -> bool:
    """True where a function of the method is among the calls that are under way."""
    return any(map(own, _calls()))


@contextmanager
def listening(own: Own) -> Iterator[dict[str, str]]:
    """Inside, what the method asks of Python is written down: what it does, with the event."""
    _hook()
    said: dict[str, str] = {}
    _listeners.append((own, said))
    try:
        with _threads_told():
            yield said
    finally:
        _listeners.pop()


@contextmanager
def _threads_told() -> Iterator[None]:
    """Inside, the start of a thread is an event in Python 3.11 too, which itself raises none."""
    if sys.version_info >= (3, 12):
        yield
        return
    start = _thread.start_new_thread

    def told(*given: Any) -> int:
        sys.audit("_thread.start_new_thread", *given)
        return start(*given)

    places = ((_thread, "start_new_thread"), (threading, "_start_new_thread"))
    for module, name in places:
        setattr(module, name, told)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, start)


@cache
def _hook() -> None:
    """Listen from now on. Kept in no variable of this module, whose change would look like a plug-in's."""
    sys.addaudithook(_heard)


def _heard(event: str, given: tuple[Any, ...]) -> None:
    if not _listeners or (event not in STARTS and event not in READS):
        return
    (own, said), held = _listeners[-1], list(_listeners)
    _listeners.clear()  # what is asked here is no event
    try:
        frames = [frame for frame in _calls() if frame.f_code.co_filename != __file__]
        if event == "sys._getframe":
            frames = [frame for frame in frames if _module(frame) != "inspect"][:1]
        if any(map(own, frames)) and not _of_compiler(frames, own) and not (event == "open" and _of_python(frames, own)):
            told = f" {str(given[0])[:80]!r}" if event in ("open", "sqlite3.connect") else ""
            said.setdefault(STARTS.get(event) or READS[event], f"{event}{told}")
    finally:
        _listeners.extend(held)


def _of_python(frames: list[FrameType], own: Own) -> bool:
    """True where a file is opened by an import, or for the source lines of a warning or a traceback. A method that asks for lines itself
    reads a file like any other."""
    if any(_module(frame).startswith(IMPORTING) for frame in frames):
        return True
    between = _between(frames, own)
    return any(module in SOURCES for module in between) and between[-1] not in SOURCES


def _of_compiler(frames: list[FrameType], own: Own) -> bool:
    """True where a compiler of torch asks, and no function of the method that it runs."""
    return any(f"{module}.".startswith(f"{compiler}.") for module in _between(frames, own) for compiler in COMPILERS)


def _between(frames: list[FrameType], own: Own) -> list[str]:
    """The modules of the calls that the method's innermost function has made."""
    return [_module(frame) for frame in takewhile(lambda frame: not own(frame), frames)]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _calls() -> Iterator[FrameType]:
    """The calls that are under way, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
