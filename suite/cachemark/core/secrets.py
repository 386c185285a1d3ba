"""Keeps secrets out of everything that is printed, stored or shown.

A secret is the value of an environment variable whose name says so, a password inside a URL, and whatever was handed to :func:`remember`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

STARS = "***"
SHORTEST = 6  # characters; shorter values occur in ordinary words
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CACHEMARK_STORE$", re.IGNORECASE)
URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@'\"]*):(?P<password>[^\s/@'\"]+)@", re.IGNORECASE)
_remembered: set[str] = set()


def remember(secret: str) -> None:
    """From here on, hide this text, and the password in it where it is a URL."""
    _remembered.update(_parts(secret))


def mask(text: str) -> str:
    """The text with stars in place of every secret."""
    for secret in sorted(_known(), key=len, reverse=True):
        text = text.replace(secret, STARS)
    return URL.sub(rf"\g<before>:{STARS}@", text)


def masked(value: Any) -> Any:
    """A value with every text inside lists and mappings masked; keys are left alone."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return value


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process may have which runs other people's code."""
    return {name: value for name, value in environment.items() if not SECRET.search(name)}


def _known() -> set[str]:
    named = (value for name, value in os.environ.items() if SECRET.search(name))
    return _remembered | {part for value in named for part in _parts(value)}


def _parts(value: str) -> set[str]:
    """Secret parts of a value: of a URL its password, of a path to a file with one nothing, of anything else all."""
    if "://" in value:
        return {found["password"] for found in URL.finditer(value) if len(found["password"]) >= SHORTEST}
    if value.startswith(("@", "/", ".")) or value.endswith((".db", ".sqlite")):
        return set()
    return {value} if len(value) >= SHORTEST else set()
