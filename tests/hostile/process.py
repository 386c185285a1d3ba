"""Attacks in copies of the process of :mod:`support.fork_server`; one that takes too much CPU or time is killed, which is a fault."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from support import fork_server

from .attack import Ending

CPU, CLOCK = 10, 60.0  # seconds of CPU and wall time, after which an attack counts as hanging
MEMORY = 8 * 2**30  # bytes of data: an attack that needs more fails alone
GUARDED = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from hostile.process import guarded; guarded()"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1, "os.chmod": 1}
ANYWHERE = ("/dev/", "/proc/self/")  # where no file stays
fork_server.CODE.add(GUARDED)


def call(ground: Path, arguments: tuple[str, ...]) -> Ending:
    """Run ``cachemark`` with these arguments in the folder ``here`` of a ground, and end all that it started."""
    own = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    own |= {"LANG": "C.UTF-8", "HOME": str(ground / "home"), "TMPDIR": str(ground / "tmp"), "CACHEMARK_LEASES": str(ground / "leases"),
            "PYTHONDONTWRITEBYTECODE": "1", **fork_server.ONE_THREAD}
    stdout, stderr, outside = (ground.with_name(f"{ground.name}.{name}") for name in ("stdout", "stderr", "outside"))
    fork_server.enabled = True  # at night too
    with stdout.open("wb") as out, stderr.open("wb") as err:
        copy = subprocess.Popen([sys.executable, "-P", "-c", GUARDED, str(outside), *arguments], env=own, cwd=ground / "here",
                                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    with suppress(subprocess.TimeoutExpired):
        copy.wait(CLOCK)
    code = None if copy.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else copy.returncode
    with suppress(ProcessLookupError):
        os.killpg(copy.pid, signal.SIGKILL)
    copy.wait()
    said = [file.read_bytes().decode("utf-8", "replace") for file in (stdout, stderr, outside)]
    return Ending(code, *said[:2], tuple(said[2].splitlines()))


def guarded() -> None:
    """Run the command line under limits and end the process; the first argument is the file for what happens outside the ground."""
    outside = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(own, "w" if own else "r", encoding="utf-8", closefd=False) for own in range(3))
    sys.dont_write_bytecode, code = True, 1
    sys.addaudithook(_watch(Path.cwd().parent, outside))
    try:
        exec(fork_server.COMMAND_LINE, {"__name__": "__main__"})
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
