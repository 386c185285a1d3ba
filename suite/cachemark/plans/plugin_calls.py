"""Questions of a plan to the methods, decoders and models of plug-ins: what their knobs are, what they store, what they compute.

They are asked here, before anything is measured, and any answer may hang, end the process or raise what nobody expects. So a copy of this
process asks first, all at once, and must come to its end in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..core import plugins
from ..core.errors import BadPlugin, CachemarkError
from . import attempt

T = TypeVar("T")
REMEDY = "What a method, a decoder or a model says of itself is asked while a plan is read: let it compute that, and nothing else."


def answered(ask: Callable[[], T]) -> T:
    """The result of ``ask``, which asks plug-ins; where none is imported, of nobody else. BadPlugin where one of them does not let it come
    to its end in time, ends the process, or raises anything but an error of ours. Where this process cannot be copied, what hangs or ends
    the process does so here."""
    if plugins.files() and attempt.possible():
        limit = attempt.limit()
        told, code = attempt.heard(attempt.copied(lambda: _asked(ask)), limit)
        if "refused" in told:
            raise BadPlugin(str(told["refused"]), remedy=REMEDY)
        if code is None:
            raise BadPlugin(f"{_suspects()} does not come to its end within {limit:g} s while a plan is read.", remedy=REMEDY)
        if not told:
            raise BadPlugin(f"{_suspects()} ends its process {attempt.ended(code)} while a plan is read.", remedy=REMEDY)
    with plugins.answering():
        return ask()


def _asked(ask: Callable[[], object]) -> dict[str, Any]:
    """The fault of a plug-in, if it is one; anything else is met again where it can be told."""
    try:
        ask()
    except BaseException as error:  # KeyboardInterrupt too: nobody can press Ctrl-C here
        if not isinstance(error, CachemarkError) and (fault := plugins.fault(error)):
            return {"refused": fault.message}
    return {"asked": True}


def _suspects() -> str:
    files = plugins.files()
    return f"Plug-in {files[0]!r}" if len(files) == 1 else f"One of the plug-ins {', '.join(map(repr, files))}"
