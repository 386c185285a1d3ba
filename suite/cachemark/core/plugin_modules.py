"""Modules of imported plug-ins, and errors from them."""

from __future__ import annotations

import sys
import traceback

from .errors import BadPlugin, text_of

MODULE = "cachemark_plugin_"  # prefix of a plug-in's module names; digests of its path and of its files' contents follow
SAID = 300  # letters of an error's own words


def files() -> list[str]:
    """Return the paths of the imported plug-ins, in import order."""
    return [str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(MODULE) and "." not in name]


def place_of(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of a plug-in in an error's traceback.

    None if no plug-in is involved.
    """
    own = {str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(MODULE)}
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((place for place in reversed(places) if place[0] in own), None)


def fault(error: BaseException) -> BadPlugin | None:
    """Return an error from a plug-in with its file and line; None if no plug-in is involved."""
    if not (place := place_of(error)):
        return None
    file, line = place
    return BadPlugin(f"Plug-in {file!r} fails at {file}:{line}: {type(error).__name__}: {message_of(error)}.", remedy="Fix the file.")


def plugin_of(module: str) -> str:
    """Return the first module of a plug-in's module, or the module itself."""
    return module.partition(".")[0] if module.startswith(MODULE) else module


def message_of(error: BaseException, message: str = "") -> str:
    """Return an error's text as one line of bounded length."""
    text = (message or text_of(error))[: 4 * SAID]
    line = "".join(letter if letter.isprintable() else "·" for letter in " ".join(text.split()))
    return line if len(line) <= SAID else f"{line[:SAID]}…"
