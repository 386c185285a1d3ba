"""Import of methods, models, decoders and metrics from files and installed packages.

Installed packages change nothing unless something names them. Built-in things, and those loaded with ``--plugin``, have precedence.
"""

from __future__ import annotations

import importlib
import math
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..cache.codecs import CODECS
from ..contract.method import COUNTED
from ..core import registry
from ..core.errors import BadPlugin, CachemarkError, out_of_memory
from ..core.files import NAME
from ..core.outside_metrics import fault_of
from ..core.plugin_modules import MODULE, SAID, fault, message_of, plugin_of
from ..core.spec import canonical
from ..core.wording import shown
from ..decoders.registry import DECODERS
from ..methods.registry import METHODS
from ..models.registry import MODELS
from . import installed
from .sources import DIGITS, Sources, know, short
from .streams import place_kept, prints_apart

TABLES: dict[installed.Kind, registry.Registry[Any]] = {"methods": METHODS, "models": MODELS, "metrics": registry.metrics}
_ALL: tuple[registry.Registry[Any], ...] = (METHODS, MODELS, DECODERS, registry.metrics)
LONGEST_PARAMETER = 10_000
PATIENCE = 120.0  # seconds for an import, or for an answer such as resolved parameters
PARAMETERS = "Parameters are finite numbers, texts, truth values, and lists and tables of them: they name the case."


_lookups: dict[str, set[str]] = {}  # by the plug-in's first module: modules whose things it looked up in a registry at its import


def load(path: str | Path) -> list[str]:
    """Import the Python file at ``path`` and return the names of the methods it registered.

    A file is imported once per process and content, including the files that it imports; newer content replaces all registrations of older
    content. A rejected file registers nothing. Only files named by the user are ever imported, never one named in a database.
    """
    sources = read(path)
    prefix = f"{MODULE}{short(str(sources.file).encode())}_"
    name = prefix + sources.digest
    if name not in sys.modules:
        older = [module for module in sys.modules if module.startswith(prefix)]
        try:
            _import(name, sources, older)
        except BaseException:
            for module in [module for module in sys.modules if plugin_of(module) == name]:
                del sys.modules[module]
            raise
        for module in older:
            sys.modules.pop(module, None)
    return METHODS.registered_by(name)


def require(kind: installed.Kind, names: Iterable[str]) -> list[str]:
    """Import installed things with these names that nothing else has registered, and return their files.

    Unknown names are ignored; their lookup raises the error. Raises BadPlugin if a file does not register its thing.
    """
    files = []
    for name in dict.fromkeys(names):
        source = origin(TABLES[kind].get(name)) if name in TABLES[kind] else None
        own = source and source[0] in {str(offer.file.resolve()) for offer in installed.offers(kind) if offer.name == name}
        if (name not in TABLES[kind] or own) and (offer := installed.offer(kind, name)):
            files.append(_load_installed(offer))
    return files


def _load_installed(offer: installed.Offer) -> str:
    try:
        load(offer.file)
    except CachemarkError as error:
        raise BadPlugin(f"{offer.source}: {error.message}", remedy=error.remedy) from error
    if offer.name not in TABLES[offer.kind]:
        raise BadPlugin(f"{offer.source} reports that {offer.module} registers the {offer.kind[:-1]} {offer.name!r}, and it does not.",
                        remedy="Register it under that name, or fix the entry point in the package's pyproject.toml.")
    return str(offer.file)


def refused(offer: installed.Offer) -> str:
    """Import an installed thing. Return the reason if that fails, else an empty text."""
    existing = TABLES[offer.kind].entries().get(offer.name)
    if existing is not None and registry.module_of(existing).startswith("cachemark."):
        return f"cachemark itself has a {offer.kind[:-1]} of that name"
    try:
        installed.offer(offer.kind, offer.name)
        _load_installed(offer)
    except CachemarkError as error:
        return error.message
    return ""


def origin(thing: Any) -> tuple[str, str] | None:
    """Return file and digest of the plug-in that defines a method or model, or None for built-in ones."""
    plugin = plugin_of(registry.module_of(thing))
    return (str(sys.modules[plugin].__file__), plugin[-DIGITS:]) if plugin.startswith(MODULE) else None


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Raise BadPlugin if this context outlasts :data:`PATIENCE`, and print to standard error; only in the main thread."""
    before = signal.getsignal(signal.SIGALRM)
    if threading.current_thread() is not threading.main_thread() or getattr(before, "__module__", "") == __name__:  # inside another one
        with place_kept():
            yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise BadPlugin(f"{what} does not return within {PATIENCE:g} s.", remedy="Find what it waits for; run the file with Python.")

    signal.signal(signal.SIGALRM, late)
    left, repeat = signal.setitimer(signal.ITIMER_REAL, PATIENCE, 1.0)  # again each second, in case the plug-in catches the error
    began = time.monotonic()
    try:
        with place_kept(), prints_apart():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - time.monotonic() + began, 0.001), repeat)


@contextmanager
def answering(*things: Any) -> Iterator[None]:
    """Raise BadPlugin for unexpected errors of these plug-in objects, and for late answers."""
    with blaming(*things), in_time(f"{' or '.join(repr(thing.name) for thing in things) or 'A plug-in'}"):
        yield


@contextmanager
def blaming(*things: Any) -> Iterator[None]:
    """Raise BadPlugin for unexpected errors of these plug-in objects."""
    try:
        yield
    except CachemarkError:
        raise
    except Exception as error:
        if plugin_error := fault(error):
            raise plugin_error from error
        if out_of_memory(error) or type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported here
            raise
        for thing in things:
            for file, _ in filter(None, map(origin, getattr(thing, "__mro__", (thing,)))):
                problem = f"{thing.name!r} answers what cannot be used: {type(error).__name__}: {message_of(error)}."
                raise BadPlugin(f"Plug-in {file!r}: {problem}", remedy="See the docstring of its base class.") from error
        raise


def needs(*things: Any) -> tuple[str, ...]:
    """Return the digests of the plug-ins that these methods, models, decoders and functions need.

    These are the ones that define them, their base classes, or anything they looked up in a registry. Digests, since a worker has other
    paths.
    """
    modules = {registry.module_of(cls) for thing in things for cls in (getattr(thing, "__mro__", ()) or (thing,))}
    needed = set[str]()
    while modules:
        module = plugin_of(modules.pop())
        if module.startswith(MODULE) and module not in needed:
            needed.add(module)
            modules |= _lookups.get(module, set())
    return tuple(sorted({module[-DIGITS:] for module in needed}))


def read(path: str | Path) -> Sources:
    """Return the file of a plug-in with those that it imports, without importing them."""
    try:
        file = Path(path).resolve()
        if not file.is_file():
            raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} is not a file.", remedy="Use the path of a Python file.")
        if file.suffix != ".py":
            raise BadPlugin(f"Plug-in {str(file)!r} is not a Python file.", remedy="Use a file that ends in .py.")
        return Sources.read(file)
    except (OSError, ValueError, RuntimeError) as error:  # an impossible name, a loop of links, a file without read permission
        raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} cannot be read: {getattr(error, 'strerror', None) or error}.",
                        remedy="Use the path of a Python file.") from None


def _import(name: str, sources: Sources, older: list[str]) -> None:
    """Import these files as ``name`` and below, in place of ``older`` modules."""
    lookups = set[str]()
    know(name, sources)
    with ExitStack() as imports:
        for table in _ALL:
            imports.enter_context(table.importing(older, lookups))
        _execute(name, sources)
        registered = [(table, thing) for table in _ALL for thing in table.registered_by(name)]
        if not registered and not any(plugin_of(registry.module_of(codec.encode)) == name for codec in CODECS.values()):
            raise BadPlugin(f"Plug-in {str(sources.file)!r} registers no method, no model, no decoder, no metric and no codec.",
                            remedy="Decorate a class with @cm.method('name') or @cm.decoder('name'), or add an entry to MODELS.")
        for table, thing in registered:
            where = f"Plug-in {str(sources.file)!r}: {table.kind} {thing!r:.60}"
            if not re.fullmatch(NAME, thing):
                raise BadPlugin(f"{where} has a name of other letters.", remedy="Use letters, digits, dashes, dots and underscores.")
            if table is not MODELS:
                _check(table, thing, where)
    _lookups[name] = lookups


def _execute(name: str, sources: Sources) -> None:
    deepest = sys.getrecursionlimit()
    try:
        with in_time("Its import"):
            importlib.import_module(f"{name}.{sources.main}" if sources.main else name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, as a script may end with it
        text, remedy = f"{type(error).__name__}: {message_of(error)}.", "Fix the file; cachemark imports it as ordinary Python."
        if isinstance(error, CachemarkError):
            text, remedy = message_of(error, error.message), error.remedy
        raise BadPlugin(f"Plug-in {str(sources.file)!r} fails at {_place(error, sources)}: {text}", remedy=remedy) from error
    finally:
        sys.setrecursionlimit(deepest)


def _place(error: BaseException, sources: Sources) -> str:
    """Return file:line of an error in the plug-in."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or sources.file}:{error.lineno or 1}"
    files = {str(source.path) for source in sources.modules.values()}
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    file, line = next((place for place in reversed(places) if place[0] in files), (str(sources.file), 1))
    return f"{file}:{line}"


def _check(table: registry.Registry[Any], name: str, where: str) -> None:
    """Refuse an abstract class, required arguments, and attributes or parameters that fit no case."""
    cls = table.get(name)
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BadPlugin(f"{where} does not define {', '.join(missing)}.",
                        remedy="Define them as in the docstring of its base class.")
    try:
        named = getattr(cls, "name", None)
        if not isinstance(named, str) or named != name:
            what = shown(named, 60) if isinstance(named, str) else f"of type {type(named).__name__}"
            wrong, remedy = f"is registered by another name than it has, {what}", f"Write: name = {name!r}"
        elif table is registry.metrics:
            cls()
            wrong, remedy = fault_of(name, cls.definition("")), "See the attributes of ImageMetric."
        else:
            wrong, remedy = unusable(cls.build({}).parameters()), PARAMETERS
            wrong = f"has a parameter that names no case: {wrong}" if wrong else ""
            if counted := [name for name in COUNTED if table is METHODS and _overrides(cls, name)]:
                wrong, remedy = f"overrides {', '.join(counted)}", "Remove it: bytes are counted where entries are stored."
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, which would end the command
        remedy = "Metrics take no arguments; other classes are dataclasses with a default for every parameter."
        reason = message_of(error) if isinstance(error, Exception) else type(error).__name__
        raise BadPlugin(f"{where} cannot be made: {reason}.", remedy=remedy) from error
    if wrong:
        raise BadPlugin(f"{where} {wrong}.", remedy=remedy)


def _overrides(cls: type, name: str) -> bool:
    """Return whether a class of a plug-in is the one that defines an attribute."""
    return next((plugin_of(base.__module__).startswith(MODULE) for base in cls.__mro__ if name in vars(base)), False)


def unusable(parameters: Mapping[str, Any]) -> str:
    """Return the parameter that cannot be part of a case, and why; an empty text if all can."""
    for name, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{str(name)[:SAID]} = {value} is not finite"
        try:
            length = len(canonical({name: value}))
        except (TypeError, ValueError, RecursionError) as error:
            return f"{str(name)[:SAID]} is of type {type(value).__name__} and cannot be written as JSON: {message_of(error)}"
        if length > LONGEST_PARAMETER:
            return f"{str(name)[:SAID]} is {length} letters long as JSON; {LONGEST_PARAMETER} are the most"
    return ""
