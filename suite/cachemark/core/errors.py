"""Everything a user can get wrong, as one family of exceptions.

An error says what was given, what was expected, the nearest right name and the remedy. Each class has a ``slug``, its name with dashes,
and under it an entry in docs/errors.md. Only the command line catches :class:`CachemarkError`; it prints the text and exits with
``exit_code``. Everything else that is raised there is a defect of this package, and ends with ``DEFECT``.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path

DEFECT = 70  # exit code of an error of our own: EX_SOFTWARE of <sysexits.h>
_MACHINE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM")}
_PATH = {getattr(errno, name) for name in ("ENOENT", "ENOTDIR", "EISDIR", "EACCES", "EPERM", "ENAMETOOLONG", "ELOOP", "EEXIST", "ENXIO")}


class CachemarkError(Exception):
    """Root of all errors that a user can mend. ``remedy`` says how."""

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
    """A model, method, parameter, metric, plan or codec that does not exist."""


class BadParameter(CachemarkError):
    """A parameter of a method whose value cannot be used."""


class BadBudget(CachemarkError):
    """A budget that the method cannot meet on this model."""


class BadPlan(CachemarkError):
    """A plan with a wrong key, type or value; the text names file and line."""


class BadCheckpoint(CachemarkError):
    """A weights file that is not a checkpoint, or not one of this model."""


class BadCalibration(CachemarkError):
    """A calibration that cannot be read, or of another model than it is used on."""


class BadStore(CachemarkError):
    """A database that cannot be read, written or understood."""


class BadBaseline(CachemarkError):
    """A baseline that is missing, damaged or of another plan."""


class BadResults(CachemarkError):
    """A file of another program's results that cannot be read."""


class UnfairComparison(CachemarkError):
    """Two sides that differ in more than what is compared."""


class BadPlugin(CachemarkError):
    """A plug-in file that cannot be imported or registers nothing."""


class Unsupported(CachemarkError):
    """A combination that cannot run; inside a trial it becomes the outcome ``unsupported``."""


class NothingMeasured(CachemarkError):
    """A run or a check that found nothing to judge."""

    exit_code = 4


class NoAccess(CachemarkError):
    """Files of others that a program may not fetch: their owner asks for an agreement, or for a person."""


class Infrastructure(CachemarkError):
    """The machine, not the user's input, stands in the way."""

    exit_code = 5


class StoreUnavailable(BadStore, Infrastructure):
    """A sound store that a full disk, a lock or a silent server makes unusable now."""


MOST_LISTED = 20  # names of one kind that a line still holds


def unknown(kind: str, given: str, known: Iterable[str]) -> UnknownName:
    """Return the error for a name that is not among ``known``, with the nearest names."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = names if len(names) <= MOST_LISTED else sorted(difflib.get_close_matches(given, names, n=MOST_LISTED // 2, cutoff=0.0))
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return UnknownName(f"Unknown {kind} {given!r}.", remedy=f"{hint}Known: {', '.join(listed) or 'none'}{more}.")


def of_system(error: Exception) -> CachemarkError | None:
    """Return an error of the operating system as one of ours; None for others.

    A full disk or memory is the machine's, a path that cannot be used the user's. Paths inside this package are a defect: None."""
    if isinstance(error, MemoryError):
        return Infrastructure("The memory of this machine is used up.", remedy="Free some, or ask for less at once.")
    if not isinstance(error, OSError):
        return None
    name = str(error.filename or "")
    if error.errno in _MACHINE:
        return Infrastructure(f"{name or 'A file'} cannot be used: {error.strerror}.", remedy="Mend that, then run the same command again.")
    if error.errno in _PATH and name and Path(__file__).parents[1] not in Path(name).absolute().parents:
        return CachemarkError(f"{name} cannot be used: {error.strerror}.", remedy="Give another path.")
    return None
