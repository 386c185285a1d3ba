"""Wheels as an installer makes and lays them out, without a network."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked(to: Path, *places: str) -> Path:
    """Copy what the repository tracks of some places, as it lies there, into a folder."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *places], cwd=ROOT, capture_output=True,
                            check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def build(tree: Path, what: str, to: Path) -> None:
    """As an installer asks the backend for it, with what is installed here: nothing is fetched, and weights are packed as they are."""
    stored = "import zlib; deflated = zlib.compressobj; zlib.compressobj = lambda level, *how: deflated(0, *how)"
    script = f"{stored}; from setuptools import build_meta; build_meta.{what}({str(to)!r})"
    done = subprocess.run([sys.executable, "-P", "-c", script], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def of_the_repository(folder: Path) -> Path:
    """The wheel of cachemark, built from the source distribution, which is built from what the repository tracks."""
    tracked(folder / "tree", "suite", "examples", "pyproject.toml", "setup.py", "README.md", "LICENSE")
    build(folder / "tree", "build_sdist", folder)
    (source,) = folder.glob("cachemark-*.tar.gz")
    shutil.unpack_archive(source, folder / "source", filter="data")
    build(next((folder / "source").iterdir()), "build_wheel", folder)
    (wheel,) = folder.glob("cachemark-*.whl")
    return wheel


def of_the_installed(name: str, folder: Path) -> Path:
    """The wheel of a pure-Python package as it is installed here, for installers that find nothing elsewhere."""
    package = distribution(name)
    wheel = folder / f"{name}-{package.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in package.files or ():
            if file.suffix != ".pyc" and ".." not in file.parts and file.name not in ("INSTALLER", "REQUESTED"):
                archive.write(file.locate(), file.as_posix())
    return wheel


def lay_out(wheel: Path, site: Path) -> None:
    """Put what a wheel holds where Python looks for it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
