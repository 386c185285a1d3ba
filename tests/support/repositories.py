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
    """A copy of the package under git, to be changed commit by commit, with or without the weights of the bundled models."""

    def __init__(self, folder: Path, weights: bool = False) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", *(() if weights else ("*.safetensors",)))
        shutil.copytree(PACKAGE, folder / "suite" / "cachemark", ignore=ignored)
        self.git("init", "-q")
        self.first = self.commit("as it is")

    def git(self, *words: str) -> str:
        return git(self.folder, *words)

    def commit(self, message: str, file: str = "", text: str = "") -> str:
        """Append a text to a file of the package, or change nothing that runs, and commit."""
        with (self.folder / "suite" / "cachemark" / file if file else self.folder / "notes").open("a") as opened:
            opened.write(text or f"{message}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")
