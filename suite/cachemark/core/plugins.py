"""Methods in files outside this package: importing such a file registers them."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import registry, secrets
from .errors import BadPlugin, CachemarkError
from .spec import canonical

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
MODULE = "cachemark_plugin_"  # begins the name of a plug-in's module; the digests of its path and of its content follow
DIGITS = 12  # of each
SAID = 300  # letters of an error's own words
_asked: dict[str, set[str]] = {}  # by plug-in: modules whose methods and models it has asked the registries for at its import


def load(path: str | Path) -> list[str]:
    """Import the Python file at ``path`` and return the names of the methods it registered.

    A file is imported once per process for each content it has; a newer content takes the place of all that an older one registered.
    Of a file that is refused nothing stays. Only files named by the user are ever imported, never one named in a database.
    """
    file, content, place = _read(path)
    name = place + _digest(content)
    if name not in sys.modules:
        older = [module for module in sys.modules if module.startswith(place)]
        _import(name, file, content, older)
        for module in older:
            del sys.modules[module]
    return registry.methods.of(name)


def loaded(path: str | Path) -> bool:
    """True where the file has been imported with the content that it has now."""
    _, content, place = _read(path)
    return place + _digest(content) in sys.modules


def files() -> list[str]:
    """Paths of the plug-ins that this process has imported, in that order."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(MODULE)]


def digest(path: str | Path) -> str:
    """Digest of the content of a plug-in, by which :func:`needs` names it."""
    return _digest(_read(path)[1])


def needs(*things: Any) -> tuple[str, ...]:
    """Digests of the plug-ins without which these methods and models cannot run: those that define them and their base classes, and those
    whose things these have asked for. A digest and no path: a worker has them elsewhere."""
    left = {registry.module_of(one) for thing in things for one in (getattr(thing, "__mro__", ()) or (thing,))}
    found = set[str]()
    while left:
        module = left.pop()
        if module.startswith(MODULE) and module not in found:
            found.add(module)
            left |= _asked.get(module, set())
    return tuple(sorted({module[-DIGITS:] for module in found}))


def _read(path: str | Path) -> tuple[Path, bytes, str]:
    """The file in full, its content, and how the names of its modules begin."""
    try:
        file = Path(path).resolve()
        if not file.is_file():
            raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} is not a file.", remedy="Give the path of a Python file.")
        content = file.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have, a loop of links, a file that is not ours
        raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} cannot be read: {getattr(error, 'strerror', None) or error}.",
                        remedy="Give the path of a Python file.") from None
    return file, content, f"{MODULE}{_digest(str(file).encode())}_"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _check(module: str, file: Path) -> None:
    """Refuse a plug-in without a method or a model, and each method that its base class would not run as it is written."""
    found = registry.methods.of(module)
    if not found and not registry.models.of(module):
        raise BadPlugin(f"Plug-in {str(file)!r} registers no method and no model.",
                        remedy="Decorate a class with @registry.methods.add('name'), or add an entry to registry.models.")
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
    _check_knobs(method, file)


def _check_knobs(method: str, file: Path) -> None:
    """Refuse knobs that cannot name a case, and a class that cannot be made without any being given."""
    try:
        knobs = registry.methods.get(method).build({}).knobs()
    except Exception as error:
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} cannot be made: {_said(error)}.",
                        remedy="Make its class a dataclass and give every knob a default.") from error
    if wrong := unusable(knobs):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r}: knob {wrong}.", remedy=KNOBS)


LONGEST_KNOB = 10_000
KNOBS = "Knobs are finite numbers, texts, truth values, and lists and tables of them: they name the case."


def unusable(knobs: Mapping[str, Any]) -> str:
    """The knob that cannot name a case, and why; empty where all can."""
    for name, value in knobs.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{str(name)[:SAID]} = {value} is not finite"
        try:
            length = len(canonical({name: value}))
        except (TypeError, ValueError, RecursionError) as error:
            return f"{str(name)[:SAID]} is of type {type(value).__name__} and cannot be written as JSON: {_said(error)}"
        if length > LONGEST_KNOB:
            return f"{str(name)[:SAID]} is {length} letters long as JSON; {LONGEST_KNOB} are the most"
    return ""


def _import(name: str, file: Path, content: bytes, older: list[str]) -> None:
    """Import ``content`` as the module ``name`` in place of the ``older`` modules. Where it is refused, nothing changes."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadPlugin(f"Plug-in {str(file)!r} is not a Python file.", remedy="Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    asked, tables = set[str](), (registry.methods, registry.models)
    try:
        with registry.methods.whole(), registry.models.whole():
            for one in older:
                for table in tables:
                    table.drop(one)
            before = [table.entries() for table in tables]
            with registry.methods.asking(asked), registry.models.asking(asked):
                _execute(module, file, content)
            for table, known in zip(tables, before, strict=True):
                _refuse_replaced(table, known, file)
            _check(name, file)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _asked[name] = asked


def _refuse_replaced(table: registry.Registry[Any], known: Mapping[str, Any], file: Path) -> None:
    """Refuse a plug-in that has put something else in the place of a thing that is not its own."""
    now = table.entries()
    if gone := sorted(name for name, thing in known.items() if now.get(name) is not thing):
        raise BadPlugin(f"Plug-in {str(file)!r} replaces the {table.kind} {gone[0]!r}, which is not its own.",
                        remedy="Register yours under another name, with @registry.methods.add('name').")


def _execute(module: ModuleType, file: Path, content: bytes) -> None:
    try:
        # What was hashed: bytecode on disk may be that of an edit in the same second.
        with secrets.hidden():
            exec(compile(content, str(file), "exec", dont_inherit=True), vars(module))
    except KeyboardInterrupt:  # Ctrl-C; a plug-in that raises it itself is found out where it is tried first
        raise
    except CachemarkError as error:
        raise BadPlugin(f"Plug-in {str(file)!r} fails at {_place(error, file)}: {_said(error, error.message)}",
                        remedy=error.remedy) from error
    except BaseException as error:  # a script may leave at its end; that must not end us
        raise BadPlugin(f"Plug-in {str(file)!r} fails at {_place(error, file)}: {type(error).__name__}: {_said(error)}.",
                        remedy=_moved(error) or "Fix the file; cachemark imports it as ordinary Python.") from error


def _said(error: BaseException, given: str = "") -> str:
    """The words of an error in one line of bounded length; they may be long, and asking for them may fail."""
    try:
        text = given or str(error)
    except BaseException as other:
        return f"(its words cannot be had: {type(other).__name__})"
    line = "".join(letter if letter.isprintable() else "·" for letter in " ".join(text[: 4 * SAID].split()))
    return line if len(line) <= SAID else f"{line[:SAID]}…"


def _moved(error: BaseException) -> str:
    """The remedy for an import from a path of an earlier version; empty for any other error."""
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    wanted = re.match(r"cannot import name '(\w+)'", str(error))
    path = f"{error.name}.{wanted[1]}" if wanted else error.name
    return f"Import from {PATHS[path]}: {path} is no more." if path in PATHS else ""


def _place(error: BaseException, file: Path) -> str:
    """File and line of an error; a syntax error names its own, not the importer's. One of our own is where the plug-in asked for it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in frames if place[0] == str(file)]
    where = (own or frames)[-1] if isinstance(error, CachemarkError) else frames[-1]
    return f"{where[0]}:{where[1]}"
