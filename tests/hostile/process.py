"""A process that has imported the command line once, and is copied for each try; and the calls of it.

A copy is a process like any other, with its own memory, folder, variables and exit code, at a hundredth of the price of a new interpreter.
It has a limit of CPU time and one of the clock: a try that hangs is killed and is a fault.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachemark.cli.test import DONE
from support import fork_server

from .attack import Ending

CPU, CLOCK = 10, 60.0  # seconds of CPU time, and of the clock where the machine has more to do, after which a try counts as hanging
MEMORY = 8 * 2**30  # bytes of data that a try may have: a larger one must fail alone, and not take the machine along
IMPORTED = ("cachemark.workflows.run", "cachemark.workflows.check", "cachemark.workflows.report", "cachemark.workflows.export",
            "cachemark.workflows.db", "cachemark.workflows.roofline", "cachemark.workflows.compare",
            "cachemark.workflows.bisect")
TESTS = Path(__file__).parents[1]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1, "os.chmod": 1}
ANYWHERE = ("/dev/", "/proc/self/")  # where nothing stays


class CopiedCommandLine:
    """The command line, once imported. Use as a context manager."""

    def __init__(self) -> None:
        paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
        self.environment = {**os.environ, **fork_server.ONE_THREAD, "PYTHONPATH": paths}

    def __enter__(self) -> CopiedCommandLine:
        self._host = subprocess.Popen([sys.executable, "-P", "-m", "hostile.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, env=self.environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._host.stdin is not None
        self._host.stdin.close()
        self._host.wait()

    def call(self, ground: Path, arguments: tuple[str, ...], *, process: bool = False, trials: bool = False,
             code: str = fork_server.COMMAND_LINE) -> Ending:
        """Run ``cachemark`` with these arguments, or other ``code``, in the folder ``here`` of a ground; what it prints lies beside the
        ground."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        own = {"PATH": self.environment["PATH"], "PYTHONPATH": self.environment["PYTHONPATH"], "LANG": "C.UTF-8",
               "HOME": str(ground / "home"), "TMPDIR": str(ground / "tmp"), "CACHEMARK_LEASES": str(ground / "leases"),
               "PYTHONDONTWRITEBYTECODE": "1", **({} if process else {DONE: os.devnull})}
        files = {name: str(ground.with_name(f"{ground.name}.{name}")) for name in ("stdout", "stderr", "outside")}
        order = {"do": ["-c", code, *arguments], "environment": {**own, **fork_server.ONE_THREAD}, "folder": str(ground / "here"),
                 "ground": str(ground), "process": process, "trials": trials, **files}
        self._host.stdin.write(json.dumps(order) + "\n")
        self._host.stdin.flush()
        ended = json.loads(self._host.stdout.readline())
        out, err, outside = (Path(file).read_bytes().decode("utf-8", "replace") for file in files.values())
        return Ending(ended, out, err, tuple(outside.splitlines()))


# -- the host -----------------------------------------------------------------------------------------------------------
def serve() -> None:
    """Run each order of standard input in a copy, and answer with its exit code, null where it had to be killed."""
    while order := sys.stdin.readline():
        data: dict[str, Any] = json.loads(order)
        if not (copy := os.fork()):
            _run(data)
            return
        sys.stdout.write(json.dumps(_waited(copy)) + "\n")
        sys.stdout.flush()


def _waited(copy: int) -> int | None:
    """The exit code of a copy; None where it was killed, by us or because its CPU time was over."""
    end = time.monotonic() + CLOCK
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(copy, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
            time.sleep(0.002)
        return None
    finally:
        _end(copy)


def _end(copy: int) -> None:
    """End a copy and what it started."""
    try:
        os.killpg(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _run(order: Mapping[str, Any]) -> None:
    """Become what the order says."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outside = os.open(order["outside"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for own, name in ((0, os.devnull), (1, order["stdout"]), (2, order["stderr"])):
        file = os.open(name, os.O_RDONLY if own == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, own)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(own, "w" if own else "r", encoding="utf-8", closefd=False) for own in range(3))
    if order["process"]:
        os.chdir(order["folder"])
        os.execve(sys.executable, [sys.executable, *order["do"]], order["environment"])
    sys.dont_write_bytecode = True
    sys.addaudithook(_watch(Path(order["ground"]), outside))
    if order["trials"]:
        fork_server.do(order)
    else:
        _do(order)


def _do(order: Mapping[str, Any]) -> None:
    """What the order says, as if an interpreter had been started for it, and an end without the second that taking it down costs."""
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # which an import may have looked up in the old environment
    os.chdir(order["folder"])
    how, what, *rest = order["do"]
    sys.argv = [how, *rest]
    try:
        exec(what, {"__name__": "__main__"})
        code: object = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


def _watch(ground: Path, report: int) -> Any:
    """A hook that writes down each change outside the ground, and each connection."""
    allowed = (f"{ground}{os.sep}", *ANYWHERE)

    def seen(event: str, given: tuple[Any, ...]) -> None:
        paths: tuple[Any, ...] = ()
        if event == "open":
            paths = given[:1] if given[2] & WRITES else ()
        elif event == "sqlite3.connect":
            paths = () if "mode=ro" in str(given[0]) else (str(given[0]).removeprefix("file:").partition("?")[0],)
        elif event == "socket.connect" and not isinstance(given[1], str | bytes):
            os.write(report, f"the address {given[1]}\n".encode())
        else:
            paths = given[: CHANGES.get(event, 0)]
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike) and not (place := os.path.abspath(os.fsdecode(path))).startswith(allowed):
                os.write(report, f"{event} {place!r}\n".encode())

    return seen


def main() -> None:
    """Entry of the process that is copied."""
    import importlib

    for name in (*fork_server.PRELOADED, *IMPORTED):
        importlib.import_module(name)
    importlib.import_module("cachemark.cli")
    serve()


if __name__ == "__main__":
    main()
