"""Methods in files outside this package: importing such a file registers them."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path

from . import registry
from .errors import BadPlugin


def load(path: str | Path) -> list[str]:
    """Import the Python file at ``path`` and return the names of the methods it registered.

    A file is imported once per process. Only files named by the user are ever imported, never one named in a database.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise BadPlugin(f"Plug-in {str(path)!r} is not a file.", remedy="Give the path of a Python file.")
    name = f"cachemark_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        _import(name, file)
    found = [m for m in registry.methods if registry.methods.get(m).__module__ == name]
    if not found:
        raise BadPlugin(f"Plug-in {str(path)!r} registers no method.", remedy="Decorate a class with @registry.methods.add('name').")
    return found


def _import(name: str, file: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadPlugin(f"Plug-in {str(file)!r} is no Python file.", remedy="Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with registry.methods.whole(), registry.models.whole():
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):  # a script may leave at its end; that must not end us, but Ctrl-C does
            raise
        raise BadPlugin(f"Plug-in {str(file)!r} fails at {_place(error)}: {type(error).__name__}: {error}.",
                        remedy="Mend the file; cachemark imports it as ordinary Python.") from error


def _place(error: BaseException) -> str:
    """File and line of an error; a syntax error names its own, not the importer's."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{where.filename}:{where.lineno}"
