"""Methods in files outside this package: importing such a file registers them."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path

from . import registry
from .errors import BadPlugin

EVICTING = "cachemark.contract.method, or cachemark.methods.base.evicting for Evicting, ring, table and visual_budget"
PATHS = {  # import paths that plug-ins were written for, and where the same things are now
    **{f"cachemark.{name}": f"cachemark.core.{name}" for name in ("errors", "plugins", "registry", "result", "seeds", "spec", "units")},
    "cachemark.cache.bidirectional": "cachemark.contract.uncached", "cachemark.cache.geometry": "cachemark.cache.layout",
    "cachemark.cache.head": "cachemark.methods.lazymar", "cachemark.cache.masked": "cachemark.cache.masked_layout",
    "cachemark.cache.mass": "cachemark.cache.attention",
    "cachemark.cache.method": EVICTING, "cachemark.cache.partial": "cachemark.methods.masked.partial",
    "cachemark.cache.portions": "cachemark.cache.bank", "cachemark.cache.reference": "cachemark.methods.base.paper_baseline",
    "cachemark.cache.schedule": "cachemark.methods.masked.schedule",
    "cachemark.cache.select": "cachemark.methods.base.evicting",
    "cachemark.cache.slot.Slots": "cachemark.cache.bank.SlotBank", "cachemark.cache.streams": "cachemark.cache.random_streams",
    "cachemark.cache.uncached": "cachemark.contract.uncached", "cachemark.cache.work": "cachemark.roofline.masked_flops",
}
ATTRIBUTES = {  # of a base class, and how they are called now
    "edge": "evict_after", "held": "kept_before", "incremental": "encoder_cache", "look": "attend_scale", "own_work": "overhead",
    "phase": "graph_key", "settle": "end_step",
}


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
    for method in found:
        _check_class(method, file)
    return found


def _check_class(method: str, file: Path) -> None:
    """Refuse a class that leaves out what its base class asks for, and names that the base class no longer reads: what they say would be
    ignored without a word."""
    cls = registry.methods.get(method)
    if left_out := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} does not define {', '.join(left_out)}.",
                        remedy="Define them; the docstring of its base class says what each returns.")
    if old := sorted(name for name in set(ATTRIBUTES) & set(vars(cls)) if any(hasattr(base, ATTRIBUTES[name]) for base in cls.__bases__)):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} defines {', '.join(old)}, of which nothing is read any more.",
                        remedy=f"Rename: {', '.join(f'{name} is now {ATTRIBUTES[name]}' for name in old)}.")


def _import(name: str, file: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadPlugin(f"Plug-in {str(file)!r} is not a Python file.", remedy="Give a file that ends in .py.")
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
                        remedy=_moved(error) or "Fix the file; cachemark imports it as ordinary Python.") from error


def _moved(error: BaseException) -> str:
    """The remedy for an import from a path of an earlier version; empty for any other error."""
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    wanted = re.match(r"cannot import name '(\w+)'", str(error))
    path = f"{error.name}.{wanted[1]}" if wanted else error.name
    return f"Import from {PATHS[path]}: {path} is no more." if path in PATHS else ""


def _place(error: BaseException) -> str:
    """File and line of an error; a syntax error names its own, not the importer's."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{where.filename}:{where.lineno}"
