"""The modules of plug-ins that this process has imported, and the errors that come out of them."""

from __future__ import annotations

import sys
import traceback

from .errors import BadPlugin

MODULE = "cachemark_plugin_"  # begins the names of a plug-in's modules; the digests of its path and of its files' contents follow
SAID = 300  # letters of an error's own words


def files() -> list[str]:
    """Paths of the plug-ins that this process has imported, in that order."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(MODULE) and "." not in name]


def fault(error: BaseException) -> BadPlugin | None:
    """Return an error from a plug-in as one with its file and line; None where no plug-in took part."""
    own = {str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(MODULE)}
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    file, line = next((place for place in reversed(places) if place[0] in own), ("", 0))
    if not file:
        return None
    return BadPlugin(f"Plug-in {file!r} fails at {file}:{line}: {type(error).__name__}: {message_of(error)}.", remedy="Fix the file.")


def plugin_of(module: str) -> str:
    """The plug-in that a module belongs to, by the name of its first one; any other module is its own."""
    return module.partition(".")[0] if module.startswith(MODULE) else module


def message_of(error: BaseException, given: str = "") -> str:
    """The words of an error in one line of bounded length; they may be long, and asking for them may fail."""
    try:
        text = given or str(error)
    except BaseException as other:
        return f"(its words cannot be had: {type(other).__name__})"
    line = "".join(letter if letter.isprintable() else "·" for letter in " ".join(text[: 4 * SAID].split()))
    return line if len(line) <= SAID else f"{line[:SAID]}…"
