"""A PostgreSQL server for a test: created in its folder, reached by a socket there, stopped after the test."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def missing() -> str:
    """Why no server can be started here, or nothing."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'cachemark[postgres]'"
    return "" if programs() else "PostgreSQL's initdb, pg_ctl and postgres are not on this machine"


def programs() -> Path | None:
    """The folder of the server's programs."""
    program = shutil.which("initdb")
    folders = [*([Path(program).parent] if program else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return next((f for f in folders if all((f / name).exists() for name in ("initdb", "pg_ctl", "postgres"))), None)


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, so root starts it as nobody."""
    folder = Path(tempfile.mkdtemp(prefix="cm-pg-"))  # a short path: that of a socket has at most 107 bytes
    data, log, result = folder / "data", folder / "log", programs()
    assert result is not None
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")

    def call(name: str, *arguments: object) -> None:
        environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
        command = [str(result / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False, **user)  # type: ignore
        output = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}{output}"

    try:
        call("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", data, "-w", "-l", log, "-o", f"-c listen_addresses='' -k {folder} -c max_connections=64", "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
