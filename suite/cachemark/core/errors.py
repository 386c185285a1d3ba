"""All errors that a user can cause, as one family of exceptions.

A message states the problem with the value, the nearest known name and the remedy. Each class has a ``slug``, its name with dashes, and an
entry in docs/errors.md. Only the command line catches :class:`CachemarkError`; it prints the text and exits with ``exit_code``. Any other
exception there is a bug of this package and exits with ``DEFECT``.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path

DEFECT = 70  # exit code of an error of our own: EX_SOFTWARE of <sysexits.h>
_MACHINE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM")}
_NO_MEMORY = re.compile("[Cc]an(not|'t) allocate memory|failed to map segment")
_PATH = {getattr(errno, name) for name in ("ENOENT", "ENOTDIR", "EISDIR", "EACCES", "EPERM", "ENAMETOOLONG", "ELOOP", "EEXIST", "ENXIO")}


class CachemarkError(Exception):
    """Base class of all errors that a user can fix; ``remedy`` describes how."""

    slug = "error"
    exit_code = 2

    def __init_subclass__(cls) -> None:
        cls.slug = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UnknownName(CachemarkError):
    """Unknown name of a model, method, parameter, metric, plan or codec."""


class BadParameter(CachemarkError):
    """Invalid value of a method's parameter."""


class BadBudget(CachemarkError):
    """Budget that the method cannot meet on this model."""


class BadPlan(CachemarkError):
    """Wrong key, type or value in a plan; the text has file and line."""


class BadCheckpoint(CachemarkError):
    """Weights file that is not a checkpoint of this model."""


class BadCalibration(CachemarkError):
    """Calibration that is unreadable or belongs to another model."""


class BadStore(CachemarkError):
    """Unreadable or incompatible database."""


class BadBaseline(CachemarkError):
    """Missing, damaged or foreign baseline."""


class BadResults(CachemarkError):
    """Unreadable results file of another program."""


class UnfairComparison(CachemarkError):
    """Sides that differ in more than the compared property."""


class BadPlugin(CachemarkError):
    """Plug-in file that fails to import or registers nothing."""


class Unsupported(CachemarkError):
    """Combination that cannot run; in a trial it becomes the outcome ``unsupported``."""


class NothingMeasured(CachemarkError):
    """Run or check without any result to evaluate."""

    exit_code = 4


class NoAccess(CachemarkError):
    """Files that need a license agreement or a login."""


class Infrastructure(CachemarkError):
    """Failure of the machine, not of the user's input."""

    exit_code = 5


class StoreUnavailable(BadStore, Infrastructure):
    """Intact store that is unusable now: full disk, lock, or silent server."""


MOST_LISTED = 20  # most names of one kind in a line


def unknown(kind: str, name: str, known_names: Iterable[str]) -> UnknownName:
    """Return the error for a name that is not in ``known_names``, with the nearest names."""
    names = sorted(known_names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = names if len(names) <= MOST_LISTED else sorted(difflib.get_close_matches(name, names, n=MOST_LISTED // 2, cutoff=0.0))
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    separator = "; " if any("," in each for each in listed) else ", "
    return UnknownName(f"Unknown {kind} {name!r}.", remedy=f"{hint}Known: {separator.join(listed) or 'none'}{more}.")


def text_of(error: BaseException) -> str:
    """Return an error's text; the text of a plug-in's error may itself fail."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:
        return f"its text cannot be made ({type(other).__name__})"


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the host is out of memory, also while loading a library."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(text_of(error)) is not None


def of_system(error: Exception) -> CachemarkError | None:
    """Return an error of the operating system as one of this package; None for others.

    Full disks and memory are the machine's fault, unusable paths the user's. Errors of paths inside this package are bugs, so None."""
    if out_of_memory(error):
        return Infrastructure("This machine is out of memory, or a limit (ulimit -v) is reached.",
                              remedy="Free some, raise the limit, or request less at once.")
    if not isinstance(error, OSError):
        return None
    name = str(error.filename or "")
    if error.errno in _MACHINE:
        return Infrastructure(f"{name or 'A file'} cannot be used: {error.strerror}.", remedy="Fix that, then run the same command again.")
    if error.errno in _PATH and name and Path(__file__).parents[1] not in Path(name).absolute().parents:
        return CachemarkError(f"{name} cannot be used: {error.strerror}.", remedy="Use another path.")
    return None
