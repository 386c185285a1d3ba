"""A copy of the package under git, so that something can be injected into its code, commit by commit."""

from __future__ import annotations

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


class Repository:
    """A copy of the package under git, to be changed commit by commit."""

    def __init__(self, folder: Path, weights: bool = False) -> None:
        """``weights``: with those of the bundled models."""
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", *(() if weights else ("*.safetensors",)))
        shutil.copytree(PACKAGE, folder / "suite" / "cachemark", ignore=ignored)
        self.git("init", "-q")
        self.first = self.commit("as it is")

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, message: str, file: str = "", text: str = "") -> str:
        """Append a text to a file of the package, or change nothing that runs, and commit."""
        with (self.folder / "suite" / "cachemark" / file if file else self.folder / "notes").open("a") as opened:
            opened.write(text or f"{message}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")
