"""Keeps secrets out of everything that is printed, stored or shown.

A secret is

* the value of an environment variable whose name says so (:data:`NAME`), where it has at least :data:`SHORTEST` characters, is no plain
  number, no ordinary word such as ``default``, and no path that exists here: ``1``, ``true`` and ``/home/me/key.pem`` stay as they are;
* the password in a URL, a user in it that looks like a token, and each of its parameters whose name says so (``?sslpassword=``), in any
  text, and by value wherever else it stands where an environment variable holds the URL;
* the same of URLs in a text that was handed to :func:`remember`, by value wherever else it stands.

Each is hidden as it is written, as URLs, JSON, Python, HTML and XML write it, and inside base64, as in the header of a request. All of it
takes time proportional to the text. What names a measurement cannot be hidden without naming another one: there :func:`found_in` says that
it holds a secret, and it is refused.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
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
ENVIRON = slice(47, 49)  # of the fields of /proc/PID/stat behind the name: where the environment begins in memory, and ends
_in_use: ContextVar[Callable[[str], str] | None] = ContextVar("masker", default=None)
_remembered: dict[str, str] = {}  # secrets, each with the variable that held it, or nothing


def remember(text: str) -> None:
    """From here on, hide the secrets of the URLs in this text by value, wherever else they stand."""
    _remembered.update(dict.fromkeys(_parts(text) if "://" in text else (), ""))


def mask(text: str) -> str:
    """The text with stars in place of every secret."""
    return text if not text else _masker()(text)


def masked(value: Any) -> Any:
    """A value with every text inside lists and mappings masked, keys too."""
    return _masked(value, _masker())


def found_in(value: Any) -> str:
    """The place from which a secret is known that stands in a text inside of lists and mappings, in words; empty where none holds any."""
    hide = _masker()
    for text in (text for text in _texts(value) if hide(text) != text):
        name = next((name for secret, name in _known().items() if any(form in text for form in _forms(secret))), "")
        return f"the value of {name}" if name else "a password or a token"
    return ""


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process may have which runs other people's code."""
    kept = _secret_variables(environment)
    return {name: value for name, value in environment.items() if name not in kept}


@contextmanager
def hidden() -> Iterator[None]:
    """Within this block the environment of this process holds no secrets; they are masked all the same. What the system shows of it as
    ``/proc/PID/environ`` holds none from here on."""
    unshow()
    kept = _secret_variables(os.environ)
    for name, value in kept.items():
        _remembered.update(dict.fromkeys(_of_variable(name, value), name))
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def unshow() -> None:
    """Put stars over secrets where the system keeps the environment that this process began with, and shows it to all processes of the
    user as ``/proc/PID/environ``. The variables stay as they are. Linux alone; where it is forbidden nothing changes."""
    held = {os.fsencode(name): name for name in _secret_variables(os.environ)}
    if not held:
        return
    with suppress(OSError, ValueError), open("/proc/self/stat", "rb") as said, open("/proc/self/mem", "r+b", buffering=0) as memory:
        at, end = map(int, said.read().rpartition(b")")[2].split()[ENVIRON])
        memory.seek(at)
        for entry in memory.read(end - at).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in held and value.strip(b"*"):
                os.environ[held[name]] = os.environ[held[name]]  # the C library's copy lies elsewhere from here on
                memory.seek(at + len(name) + 1)
                memory.write(b"*" * len(value))
            at += len(entry) + 1


def _secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _secret_name(name) or has_credentials(value)}


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


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a value, keys too, and whole numbers as they are written."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, (str, int)):
        yield str(value)


def _masker() -> Callable[[str], str]:
    """The function that masks a text by the secrets known now, or when :func:`looked_up_once` began."""
    return _in_use.get() or _made_masker()


@contextmanager
def looked_up_once() -> Iterator[None]:
    """Within this block secrets are those that are known now: going through the environment for each of thousands of texts takes longer
    than masking them."""
    token = _in_use.set(_masker())
    try:
        yield
    finally:
        _in_use.reset(token)


def _made_masker() -> Callable[[str], str]:
    written = sorted({form for secret in _known() for form in _forms(secret)}, key=len, reverse=True)

    def hide(text: str) -> str:
        for form in written:
            text = text.replace(form, STARS)
        return _without_urls(text)

    return hide


def _known() -> dict[str, str]:
    """Every secret, each with the variable that holds it, or nothing."""
    found = dict(_remembered)
    for name, value in os.environ.items():
        found.update(dict.fromkeys(_of_variable(name, value), name))
    return found


def _of_variable(name: str, value: str) -> set[str]:
    """The secrets that a variable of the environment holds."""
    if _secret_name(name) and name != LOCATION:
        return _whole(value)
    return _parts(value) if "://" in value else set()


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
    """The ways in which a secret is written: plain, in a URL, in JSON, in a Python string, in HTML and XML, in base64."""
    raw = secret.encode("utf-8", "surrogateescape")  # a variable may hold any bytes
    forms = {secret, unquote(secret), quote(raw, safe=""), quote(raw), quote_plus(raw), json.dumps(secret)[1:-1],
             json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1], html.escape(secret), html.escape(secret, quote=False),
             html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"), *_in_base64(raw)}
    return frozenset(form for form in forms if len(form) >= SHORTEST)


def _in_base64(secret: bytes) -> Iterator[str]:
    """The secret inside of a longer text in base64, without the characters into which its neighbours reach, for each of the three places at
    which it may begin."""
    for before in range(3):
        written = base64.b64encode(bytes(before) + secret).rstrip(b"=").decode()
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        yield written[first:last]
        yield written[first:last].replace("+", "-").replace("/", "_")


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
