"""Trial processes by fork, from a process that has imported torch and this package once.

It has computed nothing, and is copied for each trial that a test starts. A copy is an ordinary child process of its starter, at a tenth of
the cost, since nothing is imported again. This file is also the program of that process. Only Linux supports this; elsewhere, and in tests
marked ``slow``, ``gpu`` or ``fresh_process``, every process is started as for a user.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

PRELOADED = (  # torch-fidelity's is what judging images imports, and Pillow's are what a picture does
    "cachemark.trial.child.main", "cachemark.models.catalogue.next_token", "cachemark.methods.full", "cachemark.methods.streaming",
    "cachemark.trial.identity", "torch_fidelity.registry", *(f"PIL.{kind}ImagePlugin" for kind in ("Bmp", "Gif", "Jpeg", "Ppm", "Png")),
    "cachemark.cli", *(
        f"cachemark.workflows.{task}" for task in ("run", "check", "report", "export", "db", "roofline", "compare", "bisect")))
MODULES = {"cachemark.trial.child.main", "cachemark.machine.rates"}  # those that are run with -m
COMMAND_LINE = "from cachemark.cli import main; main()"
CODE = {COMMAND_LINE}  # that is run with -c
LARGEST = 2**17  # bytes of an order
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
CANNOT_FLUSH = 120  # exit code of an interpreter whose output cannot be written
AT_START = dict(os.environ)  # before any test changes it

enabled = False  # for the test that runs now
_server: socket.socket | None = None
_started: list[subprocess.Popen[bytes]] = []  # servers, which nobody waits for
_order = threading.Lock()
_fresh = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_fresh)


def install() -> None:
    """From here on, this process starts by fork what can be started so, where ``enabled``."""
    if sys.platform == "linux":
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _execute_child(self: Any, *arguments: Any) -> None:
    """In the place of the method of :class:`subprocess.Popen` that makes the process; all else is Popen's own."""
    bound = _parameters.bind(self, *arguments).arguments
    order_of = _wanted(bound["args"], {**os.environ} if bound["env"] is None else bound["env"]) if enabled else None
    if order_of is None:
        _fresh(self, *arguments)
        return
    order = {"do": order_of, "environment": dict(bound["env"] or os.environ), "folder": os.fspath(bound["cwd"] or os.getcwd()),
             "session": bound["start_new_session"]}
    streams = [bound[name] if bound[name] != -1 else own for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))]
    self.pid = _start(order, streams)
    self._child_created = True
    self._close_pipe_fds(*(bound[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


def _wanted(command: Any, environment: Mapping[str, str]) -> list[str] | None:
    """The arguments of a command that a copy can do; None where it needs an interpreter or code of its own."""
    ours = environment.get("PYTHONPATH") == AT_START.get("PYTHONPATH")
    if not ours or not isinstance(command, list) or command[0] != sys.executable:
        return None
    words = [str(argument) for argument in command[1:] if argument != "-P"]
    allowed = MODULES if "-m" in words[:1] else CODE if "-c" in words[:1] else ()
    return words if allowed and words[1] in allowed else None


def _start(order: Mapping[str, Any], streams: list[int]) -> int:
    """Number of the process that does so, a child of this one: it is left by its parent, and we are who takes in orphans meanwhile."""
    global _server
    with _order:
        _server = _server or _served()
        _subreaper(True)
        try:
            socket.send_fds(_server, [json.dumps(order).encode()], streams)
            answer = _server.recv(64)
        finally:
            _subreaper(False)
    if not answer:
        raise OSError("the process that is copied for trials has ended")
    return int(answer)


def _subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _served() -> socket.socket:
    """The connection to a new server. It ends with the connection, and so with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        _started.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         start_new_session=True, env={**AT_START, **ONE_THREAD}))
    return ours


# -- the server ---------------------------------------------------------------------------------------------------------
def serve(connection: socket.socket) -> dict[str, Any]:
    """Make a copy of this process for each order. Returns in the copies alone, with the order."""
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"a copy would lack {len(threads) - 1} threads"
    while True:
        text, streams, *_ = socket.recv_fds(connection, LARGEST, 3)
        if not text:
            os._exit(0)
        reads, writes = os.pipe()
        if not (middle := os.fork()):
            if os.fork():
                os._exit(0)  # so that the copy falls to who asked for it
            order: dict[str, Any] = json.loads(text)
            if order["session"]:
                os.setsid()
            connection.close()
            for own, stream in enumerate(streams):
                os.dup2(stream, own)
            os.write(writes, str(os.getpid()).encode())
            for number in (reads, writes, *streams):
                os.close(number)
            return order
        for number in (writes, *streams):
            os.close(number)
        os.waitpid(middle, 0)
        connection.send(os.read(reads, 64) or b"0")
        os.close(reads)


def do(order: Mapping[str, Any]) -> None:
    """What the order says, as if the interpreter had just been started for it."""
    global _server, enabled
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # what the copied process would do at its own end
    atexit._clear()
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # which an import may have looked up in the old environment
    os.chdir(order["folder"])
    how, what, *rest = order["do"]
    sys.argv = [how, *rest]
    if how == "-m":
        importlib.import_module(what).main()
        return
    if what == COMMAND_LINE:
        enabled, _server = True, _copied()
        install()
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(what, vars(sys.modules["__main__"]))


def serve_and_do(connection: socket.socket) -> NoReturn:
    """Do one order in a copy, which then ends as an interpreter does, but never lets go of all that it holds: that takes a second."""
    order, code = serve(connection), None
    try:
        do(order)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = CANNOT_FLUSH
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def _copied() -> socket.socket:
    """A connection to a server that is a copy of this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for own in range(3):
        os.dup2(nothing, own)
    os.close(nothing)
    serve_and_do(theirs)


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    serve_and_do(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
