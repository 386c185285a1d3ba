"""Hashes of the pinned packages for CI and the Docker images, on Linux with x86-64, CPython 3.11 and 3.12.

    uv pip compile constraints.txt --no-deps --universal --python-version 3.11.9 --format pylock.toml -o pylock.toml
    python -m tools.lock pylock.toml > ci/locked.txt

The same with ``pyproject.toml --extra quality --constraint constraints.txt`` gives ``ci/locked-image.txt``. Writes the wheels that fit,
else the source. Other systems use constraints.txt, which has no hashes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_X86 = r"(manylinux|linux)[\w.]*x86_64"
FITS = re.compile(rf"-((py2\.py3|py3|py31[12]|cp31[12])-(none|abi3|cp31[12])-(any|{_X86})|cp3\d+-abi3-{_X86})\.whl$")


def line(package: dict[str, Any]) -> str:
    """Return a package with its version and hashes, as pip reads it."""
    fitting = [wheel for wheel in package.get("wheels", ()) if FITS.search(wheel["url"])]
    files = fitting or [package["sdist"]]
    hashes = sorted({file["hashes"]["sha256"] for file in files})
    return " ".join([f"{package['name']}=={package['version']}", *(f"--hash=sha256:{each}" for each in hashes)])


def main(pylock: str) -> None:
    """Print the lines of a lock file."""
    for package in sorted(tomllib.loads(Path(pylock).read_text(encoding="utf-8"))["packages"], key=lambda each: str(each["name"])):
        print(line(package))


if __name__ == "__main__":
    main(sys.argv[1])
