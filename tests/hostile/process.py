"""A process that has imported the command line once, and is copied for each attack.

A copy has its own memory, folder, variables and exit code, at a hundredth of the cost of a new interpreter. An attack that exceeds its CPU
or wall time is killed, which is a fault. The process itself is a copy of the one of :mod:`support.fork_server`.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import fork_server

from .attack import Ending

CPU, CLOCK = 10, 60.0  # seconds of CPU and wall time, after which an attack counts as hanging
MEMORY = 8 * 2**30  # bytes of data: an attack that needs more fails alone
IMPORTED = [f"cachemark.{name}" for name in (
    "cli", *(f"workflows.{task}" for task in ("run", "check", "report", "export", "db", "roofline", "compare", "bisect")))]
TESTS = Path(__file__).parents[1]
HOST = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from hostile.process import serve; serve()"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1, "os.chmod": 1}
ANYWHERE = ("/dev/", "/proc/self/")  # where no file stays


class CopiedCommandLine:
    """The command line, imported once. Use as a context manager."""

    def __enter__(self) -> CopiedCommandLine:
        fork_server.CODE.add(HOST)
        self._host = subprocess.Popen([sys.executable, "-P", "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._host.communicate()

    def call(self, ground: Path, arguments: tuple[str, ...]) -> Ending:
        """Run ``cachemark`` with these arguments in the folder ``here`` of a ground."""
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "LANG": "C.UTF-8",
               "HOME": str(ground / "home"), "TMPDIR": str(ground / "tmp"), "CACHEMARK_LEASES": str(ground / "leases"),
               "PYTHONDONTWRITEBYTECODE": "1", **fork_server.ONE_THREAD}
        files = {name: str(ground.with_name(f"{ground.name}.{name}")) for name in ("stdout", "stderr", "outside")}
        order = {"do": ["-c", fork_server.COMMAND_LINE, *arguments], "environment": own, "folder": str(ground / "here"), **files}
        self._host.stdin.write(json.dumps(order) + "\n")
        self._host.stdin.flush()
        ended = json.loads(self._host.stdout.readline())
        out, err, outside = (Path(file).read_bytes().decode("utf-8", "replace") for file in files.values())
        return Ending(ended, out, err, tuple(outside.splitlines()))


def serve() -> None:
    """Run each order of standard input in a copy, and answer with its exit code; null if it was killed."""
    for name in IMPORTED:
        importlib.import_module(name)
    while order := sys.stdin.readline():
        if not (copy := os.fork()):
            _run(json.loads(order))
        sys.stdout.write(json.dumps(_wait(copy)) + "\n")
        sys.stdout.flush()
    os._exit(0)


def _wait(copy: int) -> int | None:
    """Return the exit code of a copy, or None if it ran out of CPU or wall time; end all that it started."""
    end, code = time.monotonic() + CLOCK, None
    while code is None and time.monotonic() < end:
        done, status = os.waitpid(copy, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0 if done else 0.002)
    try:
        os.killpg(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code


def _run(order: Mapping[str, Any]) -> None:
    """Run the command of an order and end the process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outside = os.open(order["outside"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for own, name in enumerate((os.devnull, order["stdout"], order["stderr"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if own else os.O_RDONLY)
        os.dup2(file, own)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(own, "w" if own else "r", encoding="utf-8", closefd=False) for own in range(3))
    sys.dont_write_bytecode = True
    what, code = fork_server.become(order), 1
    sys.addaudithook(_watch(Path(order["folder"]).parent, outside))
    try:
        exec(what, {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


def _watch(ground: Path, report: int) -> Any:
    """Return a hook that writes down each change outside the ground, and each connection."""
    allowed = (f"{ground}{os.sep}", *ANYWHERE)

    def hook(event: str, given: tuple[Any, ...]) -> None:
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

    return hook
