"""Methods in files outside this package: importing such a file registers them."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

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

    A file is imported once per process for each content it has; a newer content takes the place of all that an older one registered.
    Of a file that is refused nothing stays. Only files named by the user are ever imported, never one named in a database.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise BadPlugin(f"Plug-in {str(path)!r} is not a file.", remedy="Give the path of a Python file.")
    content = file.read_bytes()
    place = f"cachemark_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_"
    name = place + hashlib.sha256(content).hexdigest()[:12]
    if name not in sys.modules:
        older = [module for module in sys.modules if module.startswith(place)]
        _import(name, file, content, older)
        for module in older:
            del sys.modules[module]
    return _methods_of(name)


def _methods_of(module: str) -> list[str]:
    return [method for method in registry.methods if registry.methods.get(method).__module__ == module]


def _check(module: str, file: Path) -> None:
    """Refuse a plug-in without a method, and each method that its base class would not run as it is written."""
    found = _methods_of(module)
    if not found:
        raise BadPlugin(f"Plug-in {str(file)!r} registers no method.", remedy="Decorate a class with @registry.methods.add('name').")
    for method in found:
        _check_class(method, file)


def _check_class(method: str, file: Path) -> None:
    """Refuse a class that leaves out what its base class asks for, and names that the base class no longer reads: what they say would be
    ignored without a word."""
    cls = registry.methods.get(method)
    if left_out := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} does not define {', '.join(left_out)}.",
                        remedy="Define them; the docstring of its base class says what each returns.")
    own = [base for base in cls.__mro__ if base.__module__ == cls.__module__]  # the plug-in's base classes too
    bases = [base for base in cls.__mro__ if base not in own]
    defined = set(ATTRIBUTES) & {name for base in own for name in vars(base)}
    if old := sorted(name for name in defined if any(hasattr(base, ATTRIBUTES[name]) for base in bases)):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} defines {', '.join(old)}, of which nothing is read any more.",
                        remedy=f"Rename: {', '.join(f'{name} is now {ATTRIBUTES[name]}' for name in old)}.")


def _import(name: str, file: Path, content: bytes, older: list[str]) -> None:
    """Import ``content`` as the module ``name`` in place of the ``older`` modules. Where it is refused, nothing changes."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadPlugin(f"Plug-in {str(file)!r} is not a Python file.", remedy="Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with registry.methods.whole(), registry.models.whole():
            for one in older:
                registry.methods.drop(one)
                registry.models.drop(one)
            _execute(module, file, content)
            _check(name, file)
    except BaseException:
        del sys.modules[name]
        raise


def _execute(module: ModuleType, file: Path, content: bytes) -> None:
    try:
        # What was hashed: bytecode on disk may be that of an edit in the same second.
        exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
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
