"""A copy of the package under git, for injecting code commit by commit."""

import os
import shutil
import subprocess
from pathlib import Path

from cachemark.core.files import PACKAGE

SLOWER = """

import time as _time
_generate = LlamaGen.generate


def _slower(self, *given, **more):
    began = _time.perf_counter()
    tokens = _generate(self, *given, **more)
    end = _time.perf_counter() + {share} * (_time.perf_counter() - began)
    while _time.perf_counter() < end:
        pass
    return tokens


LlamaGen.generate = _slower
"""


def git(folder: Path, *words: str, when: str = "2026-01-01T00:00Z") -> str:
    """Output of git in a folder, without this machine's settings; with one date, hashes, by which a bisection skips, are the same."""
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", *words]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_DATE": when,
                   "GIT_COMMITTER_DATE": when}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


class Repository:
    """A copy of the package under git, to be changed commit by commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(PACKAGE, folder / "suite" / "cachemark", ignore=shutil.ignore_patterns("__pycache__"))
        git(folder, "init", "-q")
        self.commit("as it is")

    def commit(self, message: str, file: str = "", text: str = "") -> None:
        """Append a text to a file of the package, or change nothing that runs, and commit."""
        with (self.folder / "suite" / "cachemark" / file if file else self.folder / "notes").open("a") as opened:
            opened.write(text or f"{message}\n")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", message)
