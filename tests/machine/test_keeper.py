"""A keeper ends with its process whatever that has started, and leaves as it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachemark.machine import keeper
from support import stages

pytestmark = pytest.mark.skipif(not keeper.KEEPS, reason="needs Linux")
DAEMON = """
import os, signal, sys, time
from cachemark.machine.keeper import keep

def daemon(depth=1):
    there, here = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if depth:
            daemon(depth - 1)
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")
        os.write(here, b".")
        time.sleep(1000)
    os.read(there, 1)

def work():
    daemon()
    with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children") as of_keeper:
        print(len(set(of_keeper.read().split()) - {str(os.getpid())}) > 0, flush=True)
    WORK

keep(work)
print("only the copy comes here")
"""


def kept(folder: Path, work: str) -> subprocess.Popen[bytes]:
    code = DAEMON.replace("WORK", work)
    return subprocess.Popen([sys.executable, "-P", "-c", code, str(folder / "pids")], stdout=subprocess.PIPE, start_new_session=True)


def gone(folder: Path) -> bool:
    pids = [int(line) for line in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    return all(map(stages.ended, pids))


@pytest.mark.parametrize(("work", "code"), [
    ("pass", 0), ("sys.exit(7)", 7), ("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ("os.abort()", -signal.SIGABRT), ("os.killpg(0, signal.SIGTERM)", -signal.SIGTERM),
])  # fmt: skip
def test_a_keeper_leaves_as_its_process_did_and_nothing_is_left(work: str, code: int, tmp_path: Path) -> None:
    with kept(tmp_path, work) as process:
        said, _ = process.communicate(timeout=stages.PATIENCE)
    assert process.returncode == code
    assert said == (b"True\nonly the copy comes here\n" if work == "pass" else b"True\n")
    assert gone(tmp_path), "before the keeper itself was"


def test_a_keeper_that_is_asked_to_end_ends_everything(tmp_path: Path) -> None:
    with kept(tmp_path, "time.sleep(1000)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=stages.PATIENCE) == -signal.SIGTERM
    assert gone(tmp_path)


def test_a_process_ends_with_its_keeper(tmp_path: Path) -> None:
    with kept(tmp_path, "print(os.getpid(), flush=True); time.sleep(1000)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        stages.until(lambda: stages.ended(pid), "the end of a process without a keeper")
    for line in (tmp_path / "pids").read_text().split():  # these nobody keeps any more
        os.kill(int(line), signal.SIGKILL)
