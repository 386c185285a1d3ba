"""Keeps secrets out of everything that is printed, stored or shown.

A secret is

* the value of an environment variable whose name says so (:data:`NAME`), where it has at least :data:`SHORTEST` characters, is no plain
  number, no ordinary word such as ``default``, and no path that exists here: ``1``, ``true`` and ``/home/me/key.pem`` stay as they are;
* the password in a URL, a user in it that looks like a token, and each of its parameters whose name says so (``?sslpassword=``), in any
  text, and by value wherever else it stands where an environment variable holds the URL;
* whatever was handed to :func:`remember`.

Each is hidden as it is written, and as URLs, JSON and Python write it. All of it takes time proportional to the text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

STARS = "***"
SHORTEST = 6  # characters; shorter values occur in ordinary words
TOKEN = 16  # characters of a user in a URL that is taken for a token
NUMBER = 10  # digits from which a number is taken for a secret
WORDS = frozenset({"always", "default", "disable", "disabled", "enable", "enabled", "ignore", "optional", "prompt", "public", "required"})
FOLDERS = frozenset({"PWD", "OLDPWD"})  # where a shell is, not a password
NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTHORIZATION|BEARER|WEBHOOK|PWD(?![A-Z])"
    r"|(?<!BY)(?<!COM)PASS(?![A-Z])|(?:(?<![A-Z])|ACCESS|API|ENCRYPTION|HMAC|MASTER|PRIVATE|SIGNING)KEYS?(?![A-Z])"
    r"|(?<![A-Z])(?:AUTH|COOKIE|CREDS?|DSN|JWT|PAT|PSK|SALT|SAS|SIG|SIGNATURE)(?![A-Z])|CONN(?:ECTION)?_?STR(?:ING)?",
    re.IGNORECASE,
)
"""Found in the name of a variable or of a URL's parameter, this says that the value is secret."""
LOCATION = "CACHEMARK_STORE"  # says where the store is: secret is only what its URL holds, but no other program needs to know it
PARAMETER = re.compile(r"(?P<before>[?&;](?P<name>[\w.%-]{1,64})=)(?P<value>[^\s&;#'\"<>\\]+)")
KEYWORD = re.compile(r"(?P<before>\b(?:ssl)?passw(?:or)?d=)(?P<value>[^\s&;#'\"<>\\]+)", re.IGNORECASE)  # host=… password=…
PORT = re.compile(r"\d{1,5}(?![^/?#])")
_IN_TEXT, _ALONE = re.compile(r"[\s'\"<>\\]"), re.compile(r"\s")  # what ends a URL in a text, and one that is a whole value
_remembered: set[str] = set()


def remember(secret: str) -> None:
    """From here on, hide this text; of a URL what is secret in it."""
    _remembered.update(_parts(secret))


def mask(text: str) -> str:
    """The text with stars in place of every secret."""
    return _masker()(text)


def masked(value: Any) -> Any:
    """A value with every text inside lists and mappings masked, keys too."""
    return _masked(value, _masker())


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process may have which runs other people's code."""
    return {name: value for name, value in environment.items() if not _secret_name(name) and not has_credentials(value)}


@contextmanager
def hidden() -> Iterator[None]:
    """Within this block the environment of this process holds no secrets; they are masked all the same."""
    kept = {name: value for name, value in os.environ.items() if name not in without_secrets(os.environ)}
    _remembered.update(_known())
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def has_credentials(text: str) -> bool:
    """True of a text with a URL that holds a password, a token or a secret parameter."""
    return "://" in text and _without_urls(text) != text


def _masked(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(key) if isinstance(key, str) else key: _masked(item, hide) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(item, hide) for item in value]
    return value


def _masker() -> Callable[[str], str]:
    """The function that masks a text by the secrets known now."""
    written = sorted({form for secret in _known() for form in _forms(secret)}, key=len, reverse=True)

    def hide(text: str) -> str:
        for form in written:
            text = text.replace(form, STARS)
        return _without_urls(text)

    return hide


def _known() -> set[str]:
    found = set(_remembered)
    for name, value in os.environ.items():
        found |= _whole(value) if _secret_name(name) and name != LOCATION else _parts(value) if "://" in value else set()
    return found


@lru_cache(maxsize=4096)
def _secret_name(name: str) -> bool:
    return name == LOCATION or (NAME.search(name) is not None and name not in FOLDERS)


def _whole(value: str) -> set[str]:
    """Secrets of a variable that is secret by its name: of a URL without anything secret in it, the whole (a webhook, say)."""
    return _parts(value) or _valued(value)


def _parts(value: str) -> set[str]:
    """Secrets in a text: of a URL its credentials, of anything else all, line by line where it has several."""
    if "://" in value:
        return {part for part in _credentials(value) if len(part) >= SHORTEST}
    return _valued(value)


@lru_cache(maxsize=1024)
def _valued(value: str) -> set[str]:
    """The value, where it is one that could be told from ordinary text."""
    lines = {line.strip() for line in value.splitlines()} if "\n" in value else set()
    return {text for text in ({value} | {line for line in lines if len(line) >= TOKEN}) if not _ordinary(text)}


def _ordinary(value: str) -> bool:
    number = value.isdecimal() and len(value) < NUMBER
    return len(value) < SHORTEST or number or value.lower() in WORDS or os.path.exists(value)


@lru_cache(maxsize=1024)
def _forms(secret: str) -> frozenset[str]:
    """The ways in which a secret is written: plain, in a URL, in JSON, in a Python string."""
    forms = {secret, unquote(secret), quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1],
             json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    return frozenset(form for form in forms if len(form) >= SHORTEST)


# -- URLs -------------------------------------------------------------------------------------------------------------
def _credentials(text: str) -> set[str]:
    """The secrets of all URLs in a text."""
    found: set[str] = set()

    def note(secret: str) -> str:
        found.add(secret)
        return STARS

    _each(text, note, _ALONE)
    return found


def _without_urls(text: str) -> str:
    return _each(text, lambda secret: STARS)


def _each(text: str, instead: Callable[[str], str], ends: re.Pattern[str] = _IN_TEXT) -> str:
    """The text with ``instead`` called for each secret of a URL or of ``password=…`` in it; ``ends`` is found behind a URL."""
    if "=" in text:
        text = PARAMETER.sub(lambda m: m["before"] + instead(m["value"]) if NAME.search(m["name"]) else m[0], text)
        text = KEYWORD.sub(lambda m: m["before"] + (m["value"] if m["value"] == STARS else instead(m["value"])), text)
    if "://" not in text or "@" not in text:
        return text
    scheme, *rest = text.split("://")
    done = [scheme]
    for part in rest:  # each character is looked at in one part alone, so that the time is proportional to the length
        done.append(_authority(part, instead, ends, http=scheme[-5:].lower().endswith(("http", "https"))))
        scheme = part
    return "://".join(done)


def _authority(part: str, instead: Callable[[str], str], ends: re.Pattern[str], http: bool) -> str:
    """The text behind a ``://``, without the secrets before its host. A password may hold an @, and a slash where it is no port."""
    ended = ends.search(part)
    url = part[: ended.start()] if ended else part
    short = min((at for at in map(url.find, "/?#") if at >= 0), default=len(url))
    at = url.rfind("@", 0, short)
    if at < 0:
        user, colon, rest = url.partition(":")
        if not colon or len(user) > short or PORT.match(rest) or (at := url.find("@", len(user))) < 0:
            return part
    user, colon, password = url[:at].partition(":")
    token = len(user) >= (SHORTEST if http and not colon else TOKEN) and ((http and not colon) or _mixed(user))
    hidden_user = instead(user) if token and user != STARS else user
    hidden_password = instead(password) if password and password != STARS else password
    return hidden_user + colon + hidden_password + part[at:]


def _mixed(text: str) -> bool:
    """True of a text of letters and digits, as tokens are."""
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text))
