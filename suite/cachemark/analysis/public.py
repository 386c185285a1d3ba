"""Runs without host, user, path, device number and error texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.facts import Facts
from ..core.result import Outcome

if TYPE_CHECKING:  # a page is made without a store
    from ..store.rows import RunRecord, Verdict

PRIVATE = frozenset({"host", "hostname", "node", "user", "uuid", "pid", "cpus", "processes"})
"""Facts about the place of a run, not about its hardware."""
WITHHELD = "The text of this error is kept by whoever measured."
_TOKEN = r"(?:hf|gh[opsu]|github_pat)_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA\w{12,}|eyJ[\w-]{8,}\.[\w.-]+|" \
    r"npm_\w{16,}|AIza[\w-]{20,}"
_SECRET = r"(?<![\w-])[\w-]{0,40}?(?:passw(?:or)?d|pwd|secret|token|(?:api|access|account)[_-]?key)"  # ends the name of a variable or a key
_ENDINGS = "com|org|net|edu|gov|mil|io|ai|dev|cloud|de|fr|uk|ch|at|nl|eu|us|ca|cn|jp|kr|sg|local|lan|internal|corp|intranet|home|cluster"
_TEXTS = re.compile("|".join((
    r"(?P<token>\b(?:" + _TOKEN + r")|(?i:" + _SECRET + r"[\"']?\s*[=:]\s*|--passw(?:or)?d\s+)[^\s&,;]+|(?i:\bbearer )[\w.-]{8,}|"
    r"(?i:\bauthorization:\s*)\w+ \S+|-----BEGIN [A-Z ]+-----[^-]*(?:-----END [A-Z ]+-----)?)",
    r"(?P<file>\bfile:[^\s'\",;()<>|]+)",
    r"(?P<url>\b[A-Za-z][\w+.-]{0,30}://[^\s'\",;()<>|]+)",
    r"(?P<share>\\\\[^\s'\",;()<>|]+)",
    r"(?P<mail>(?<![\w/:.+-])[\w.+-]{1,63}@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?::[^\s'\",;()<>|]+)?)",
    r"(?P<login>(?<![\w/:.-])[a-z][\w.-]{0,63}@[a-z][a-z0-9-]*\b(?![/.\w]))",
    r"(?P<user>\b(?:USER|USERNAME|LOGNAME|HOSTNAME)=[^\s,;]+)",
    r"(?P<device>\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,})",
    r"(?P<quoted>(?P<mark>[\"'])(?:~[\w.-]*|[A-Za-z]:)?[/\\][^\"'\n]+[/\\][^\"'\n]*(?P=mark))",
    r"(?P<path>(?<![\w:/.<])(?:~[\w.-]*|\.{1,2})?(?:/[^\s/:'\",;()<>|]+)+/?|\b[A-Za-z]:[/\\][^\s'\",;]+)",
    r"(?P<host>(?<![\w./@-])(?:[a-z0-9][a-z0-9-]*\.){2,}(?:" + _ENDINGS + r")\b(?![\w./-]))",
)))  # fmt: skip
_HOME = re.compile(r".*[/\\](?:home|Users)[/\\][^/\\]+")
_WORDS = {"token": "a secret", "mail": "an address", "login": "an address", "user": "an address", "device": "a device", "host": "a host"}
_PUBLIC_URL = re.compile(r"https?://(?:[\w-]+\.)+(?!local\b|lan\b|internal\b|corp\b|intranet\b|home\b|cluster\b)[A-Za-z]{2,}(?:/|$)")


def public_run(run: RunRecord) -> RunRecord:
    """Return the run without private facts."""
    environment = replace(run.environment, facts=scrubbed(run.environment.facts))
    return replace(run, plan_json=scrubbed(run.plan_json), environment=environment, code=scrubbed(run.code))


def public_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return results without private facts; values and keys are unchanged."""
    public = []
    for o in outcomes:
        case = o.case.worded(parameters=scrubbed(o.case.parameters), evaluation=scrubbed(o.case.evaluation),
                             variant=_scrubbed_text(o.case.variant), decoder=scrubbed(o.case.decoder))
        log = WITHHELD if o.log else ""
        facts = Facts.from_json(scrubbed(o.facts.to_json()))
        public.append(replace(o, case=case, log=log, unjudged=_scrubbed_text(o.unjudged), facts=facts))
    return public


def public_verdicts(rows: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the rows of a comparison without private facts."""
    return tuple(replace(row, label=_scrubbed_text(row.label), reason=_scrubbed_text(row.reason)) for row in rows)


def scrubbed(value: Any) -> Any:
    """Remove private facts from a value, and paths (but their last part), logins, secrets and host names from its texts."""
    if isinstance(value, str):
        return _scrubbed_text(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item) for key, item in value.items() if str(key).lower() not in PRIVATE}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    return value


def _scrubbed_text(text: str) -> str:
    return _TEXTS.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    """Return what a page may show instead: links to public sites, and the last part of a path."""
    kind, text = str(match.lastgroup), match[0]
    if kind == "url":
        return re.split(r"[?#]", text)[0] if _PUBLIC_URL.match(text) else "a URL"
    mark = match["mark"] or ""
    path = text.strip(mark or None).rstrip("/\\")
    last = "" if _HOME.fullmatch(path) else re.split(r"[/\\]", path)[-1]  # of a home, it is its user
    return _WORDS.get(kind) or f"{mark}…/{last}{mark}"
