"""The location of a store: a path, a database URL, or ``@FILE`` that holds one of them.

No message shows a password.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..core.errors import BadStore
from ..core.files import is_readable

FORMS = "Write a path for SQLite, or postgresql+psycopg://user@host/database."
_SECRET = r"(pass(?!file)\w*|pwd|\w*password|secret|\w*secret|\w*token|scram_\w+_key)"
SECRETS = re.compile(rf".*{_SECRET}.*", re.IGNORECASE)  # parameters of a URL, besides the password before the host
_HOLDS_SECRET = re.compile(rf"{_SECRET}\s*[=:]|:[^/]*@|:.*//", re.IGNORECASE)  # in another part: a setting of the server, another URL
LONGEST_FILE = 4096  # bytes of a file with a location
_LIKE_A_URL = re.compile(  # one that lacks its scheme, and a line of .pgpass
    r"postgres\w*(\+\w+)?:?/.*@|//[^/]*@|/*[^/@:]*:[^@]*@|[^:/]*:(\d+|\*):[^:]*:[^:]*:.", re.IGNORECASE)
_LIKE_SETTINGS = re.compile(rf"(.*[\s?&;#])?{_SECRET}\s*=", re.IGNORECASE)  # the words of libpq, or the query of a URL


def located(location: str | Path) -> Path | URL:
    """Return the SQLite file or the server of a store's location.

    ``@FILE`` is replaced by the text of that file. Raises BadStore, without the text, for a URL that cannot be parsed."""
    if not isinstance(location, str | Path):
        raise BadStore(f"{location!r} is not a location of a store.", remedy=FORMS)
    text = str(location)
    if text.startswith("@"):
        text = _text_of(Path(text[1:]))
    text = text.removeprefix("sqlite:///")
    if "://" in text:
        return _url(text)
    if _hides_password(text):
        raise BadStore("The store looks like a database URL, but has no '://'.", remedy=f"{FORMS} Write ./NAME for a file of that name.")
    return Path(text)


def shown(location: Path | URL) -> str:
    """Return a location for messages, with *** for each password."""
    if isinstance(location, Path):
        return str(location)
    return location.update_query_dict(dict.fromkeys(_secrets_of(location), "***")).render_as_string(hide_password=True)


def has_password(location: Path | URL) -> bool:
    """Return whether a location has a password in it."""
    return isinstance(location, URL) and bool(location.password or _secrets_of(location))


def _secrets_of(url: URL) -> list[str]:
    return [name for name, value in url.query.items() if SECRETS.fullmatch(name) or _HOLDS_SECRET.search(str(value))]


def _hides_password(path: str) -> bool:
    """Return whether a path is more likely a database URL with a password: it has its form, and no such file or folder exists."""
    folder = os.path.dirname(path)
    if path.startswith("./") or os.path.exists(path):
        return False
    return bool(_LIKE_SETTINGS.match(path) or (_LIKE_A_URL.match(path) and not (folder.strip("/") and os.path.isdir(folder))))


def _url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    # a password with an unquoted @ or / ends too early, one with a quoted colon before it is part of the name
    if url is None or "@" in f"{url.host}{url.database}" or ":" in str(url.username) or _LIKE_SETTINGS.match(f" {url.database}"):
        raise BadStore("The store is not a database URL.",
                       remedy=f"{FORMS} Quote special characters of a password, such as %40 for @ and %2F for /.") from None
    return url


def _text_of(file: Path) -> str:
    if not is_readable(file):
        raise BadStore(f"The store is to be read from {file}, which is not a readable file.",
                       remedy="Write one path or database URL into it, or ./@NAME for a store of that name.")
    with file.open("rb") as stream:
        lines = stream.read(LONGEST_FILE + 1).decode("utf-8", "replace").split("\n")
    text, *others = [line.strip() for line in lines if line.strip()] or [""]
    if not text or others or text.startswith("@") or len(text) > LONGEST_FILE:
        raise BadStore(f"{file} does not hold one location of a store.", remedy=f"Keep one line in it. {FORMS}")
    return text
