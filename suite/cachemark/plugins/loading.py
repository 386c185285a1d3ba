"""Import of files with methods, models, decoders and metrics, which register themselves."""

from __future__ import annotations

import importlib
import math
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadPlugin, CachemarkError
from ..core.outside_metrics import fault_of
from ..core.plugin_modules import MODULE, SAID, fault, message_of, plugin_of
from ..core.spec import canonical
from ..decoders.registry import DECODERS
from ..methods.registry import METHODS
from ..models.registry import MODELS
from .sources import DIGITS, READER, Sources, know, short

TABLES: tuple[registry.Registry[Any], ...] = (METHODS, MODELS, DECODERS, registry.metrics)
_asked: dict[str, set[str]] = {}  # by plug-in: modules whose methods, models and decoders it has asked the registries for at its import
_imported: dict[str, tuple[Sources, set[str]]] = {}  # by plug-in: its files, and the modules that were there before it


def load(path: str | Path) -> list[str]:
    """Import the Python file at ``path`` and return the names of the methods it registered.

    A file is imported once per process and content, including the files that it imports; a newer content replaces all that an older one
    registered. A refused file leaves nothing behind. Only files named by the user are ever imported, never one named in a database.
    """
    sources, place = _read(path)
    name = place + sources.digest
    if name not in sys.modules:
        older = [module for module in sys.modules if module.startswith(place)]
        _import(name, sources, older)
        for module in older:
            sys.modules.pop(module, None)
    return METHODS.registered_by(name)


def loaded(path: str | Path) -> bool:
    """Return whether the file has been imported with its current content."""
    sources, place = _read(path)
    return place + sources.digest in sys.modules


def origin(thing: Any) -> tuple[str, str] | None:
    """Return file and digest of the plug-in that defines a method or model, or None for built-in ones."""
    plugin = plugin_of(registry.module_of(thing))
    return (str(sys.modules[plugin].__file__), plugin[-DIGITS:]) if plugin.startswith(MODULE) else None


@contextmanager
def answering(*things: Any) -> Iterator[None]:
    """Raise BadPlugin inside this context for unexpected errors of these plug-in objects."""
    try:
        yield
    except CachemarkError:
        raise
    except Exception as error:
        if problem := fault(error):
            raise problem from error
        origins = ((thing, origin(cls)) for thing in things for cls in getattr(thing, "__mro__", (thing,)))
        for thing, (file, _) in ((thing, source) for thing, source in origins if source):
            raise BadPlugin(f"Plug-in {file!r}: {thing.name!r} answers what cannot be used: {type(error).__name__}: {message_of(error)}.",
                            remedy="Its base class says what each answer is.") from error
        raise


def digest(path: str | Path) -> str:
    """Return the digest of a plug-in with the files that it imports, by which :func:`needs` names it."""
    return _read(path)[0].digest


def packed(path: str | Path) -> tuple[str, dict[str, bytes]]:
    """Return the files of a plug-in for another machine; see :attr:`Sources.packed`."""
    return _read(path)[0].packed


def strays() -> list[str]:
    """Return modules that plug-ins imported from their own files without an import statement.

    Their content is not in the digest, so an edit would go unnoticed.
    """
    return sorted({name for plugin, (sources, before) in _imported.items() if plugin in sys.modules
                   for name, module in list(sys.modules.items()) if name not in before and not name.startswith(("cachemark.", MODULE))
                   and sources.stray(module)})


def needs(*things: Any) -> tuple[str, ...]:
    """Return the digests of the plug-ins that these methods, models and decoders need.

    These are the ones that define them, their base classes, or anything they looked up in a registry. Digests, since a worker has other
    paths.
    """
    modules = {registry.module_of(cls) for thing in things for cls in (getattr(thing, "__mro__", ()) or (thing,))}
    needed = set[str]()
    while modules:
        module = plugin_of(modules.pop())
        if module.startswith(MODULE) and module not in needed:
            needed.add(module)
            modules |= _asked.get(module, set())
    return tuple(sorted({module[-DIGITS:] for module in needed}))


def _read(path: str | Path) -> tuple[Sources, str]:
    """Return the file with those it imports, and the prefix of its module names."""
    try:
        file = Path(path).resolve()
        if not file.is_file():
            raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} is not a file.", remedy="Give the path of a Python file.")
        if file.suffix != ".py":
            raise BadPlugin(f"Plug-in {str(file)!r} is not a Python file.", remedy="Give a file that ends in .py.")
        sources = Sources.read(file)
    except (OSError, ValueError, RuntimeError) as error:  # a name that no file can have, a loop of links, a file that is not ours
        raise BadPlugin(f"Plug-in {str(path)[:SAID]!r} cannot be read: {getattr(error, 'strerror', None) or error}.",
                        remedy="Give the path of a Python file.") from None
    return sources, f"{MODULE}{short(str(file).encode())}_"


def _check(module: str, file: Path) -> None:
    """Refuse a plug-in that registers nothing, or something that cannot run."""
    methods, decoders, metrics = METHODS.registered_by(module), DECODERS.registered_by(module), registry.metrics.registered_by(module)
    if not methods and not decoders and not metrics and not MODELS.registered_by(module):
        raise BadPlugin(f"Plug-in {str(file)!r} registers no method, no model, no decoder and no metric.",
                        remedy="Decorate a class with @cm.method('name') or @cm.decoder('name'), or add an entry to MODELS.")
    for method in methods:
        _check_class(method, file)
        _check_parameters(METHODS, method, file)
    for decoder in decoders:
        _check_parameters(DECODERS, decoder, file)
    for metric in metrics:
        _check_metric(metric, file)


def _check_metric(metric: str, file: Path) -> None:
    """Refuse a metric that is abstract, cannot be constructed without arguments, or has wrong attributes."""
    cls = registry.metrics.get(metric)
    if left_out := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BadPlugin(f"Plug-in {str(file)!r}: metric {metric!r} does not define {', '.join(left_out)}.",
                        remedy="Define them; the docstring of its base class says what each returns.")
    try:
        cls()
        named = getattr(cls, "name", None)
        wrong = fault_of(metric, cls.definition("")) if named == metric else f"is registered by another name than it has, {named!r:.60}"
    except Exception as error:
        raise BadPlugin(f"Plug-in {str(file)!r}: metric {metric!r} cannot be made: {message_of(error)}.",
                        remedy="Let its class take no arguments and state within as two numbers.") from error
    if wrong:
        raise BadPlugin(f"Plug-in {str(file)!r}: metric {metric!r} {wrong}.", remedy="ImageMetric says what each attribute is.")


def _check_class(method: str, file: Path) -> None:
    """Refuse an abstract class."""
    cls = METHODS.get(method)
    if left_out := sorted(getattr(cls, "__abstractmethods__", ())):
        raise BadPlugin(f"Plug-in {str(file)!r}: method {method!r} does not define {', '.join(left_out)}.",
                        remedy="Define them; the docstring of its base class says what each returns.")


def _check_parameters(table: registry.Registry[Any], name: str, file: Path) -> None:
    """Refuse parameters without defaults or that cannot be part of a case."""
    try:
        parameters = table.get(name).build({}).parameters()
    except Exception as error:
        raise BadPlugin(f"Plug-in {str(file)!r}: {table.kind} {name!r} cannot be made: {message_of(error)}.",
                        remedy="Make its class a dataclass and give every parameter a default.") from error
    if wrong := unusable(parameters):
        raise BadPlugin(f"Plug-in {str(file)!r}: {table.kind} {name!r}: parameter {wrong}.", remedy=PARAMETERS)


LONGEST_PARAMETER = 10_000
PARAMETERS = "Parameters are finite numbers, texts, truth values, and lists and tables of them: they name the case."


def unusable(parameters: Mapping[str, Any]) -> str:
    """Return the parameter that cannot be part of a case, and why; "" if all can."""
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


def _import(name: str, sources: Sources, older: list[str]) -> None:
    """Import these files as ``name`` and below, replacing ``older`` modules, or change nothing."""
    requested, tables, file = set[str](), TABLES, sources.file
    know(name, sources)
    try:
        with ExitStack() as stack:
            for table in tables:
                stack.enter_context(table.transaction())
            for name_of_module in older:
                for table in tables:
                    table.drop(name_of_module)
            modules = set(sys.modules)
            with ExitStack() as asking:
                for table in tables:
                    asking.enter_context(table.recording(requested))
                _execute(name, sources)
            _check(name, file)
            _imported[name] = sources, modules
            _refuse_strays(file)
    except BaseException:
        _imported.pop(name, None)
        for name_of_module in [module for module in sys.modules if plugin_of(module) == name]:
            del sys.modules[name_of_module]
        raise
    _asked[name] = requested


def _refuse_strays(file: Path) -> None:
    """Refuse a plug-in that imports a file of its own without an import statement."""
    if stray_files := strays():
        raise BadPlugin(f"Plug-in {str(file)!r} imports {stray_files[0]!r}, a file of its own that no import statement names.",
                        remedy="Write an import statement for it, and an __init__.py into its folder: what it says is part of what a case "
                               "is. Where it is no file of the plug-in, give the plug-in a folder of its own.")


def _execute(name: str, sources: Sources) -> None:
    file = sources.file
    try:
        importlib.import_module(f"{name}.{sources.main}" if sources.main else name)
    except KeyboardInterrupt:  # Ctrl-C; a plug-in that raises it itself is found out where it is tried first
        raise
    except CachemarkError as error:
        raise BadPlugin(f"Plug-in {str(file)!r} fails at {_place(error, sources)}: {message_of(error, error.message)}",
                        remedy=error.remedy) from error
    except BaseException as error:  # a script may leave at its end; that must not end us
        raise BadPlugin(f"Plug-in {str(file)!r} fails at {_place(error, sources)}: {type(error).__name__}: {message_of(error)}.",
                        remedy="Fix the file; cachemark imports it as ordinary Python.") from error


def _place(error: BaseException, sources: Sources) -> str:
    """Return file:line of an error in the plug-in; for our own errors, the line that caused it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    files = {str(source.path) for source in sources.modules.values()}
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [place for place in frames if not place[0].startswith("<frozen importlib") and Path(place[0]) != READER] or frames
    own = [place for place in frames if place[0] in files]
    where = (own or frames)[-1] if isinstance(error, CachemarkError) else frames[-1]
    return f"{where[0]}:{where[1]}"
