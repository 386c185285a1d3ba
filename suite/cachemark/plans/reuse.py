"""Reuse of stored outcomes: the result key that identifies them, and the reuse of their quality.

A stored outcome is valid as long as nothing has changed that its values depend on. The code part (``COUNTED``) is everything between a
case and its values in the child process: storage, contract, models and methods, FLOPs and roofline times, metrics, the child with its
clock, memory counting and CPU affinity, and the seeds. Code that starts children (plans, costs, deadlines, supervisor, executors, leases),
watches the machine, or stores, evaluates or displays results does not count. Decisions of a plan are in the case, and metric definitions
have versions.

Only plug-ins that define the case's method or model are in the key: a process never imports one that its cases do not need
(:mod:`cachemark.trial.supervisor`).

A quality pass generates thousands of images, fidelity some dozens at the same seeds. If the hash of *their* tokens, the hash of their
images and all their values are unchanged, under the same numerics and definitions, then tokens and decoding are unchanged, and the values
of the quality pass are taken over, marked with their source. Values alone would not suffice: the full cache's compare it with itself.

A case with more samples than a stored one takes over its tokens (:class:`KnownSeeds`), generation by generation, and generates the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import CachemarkError
from ..core.facts import Reused, SetFacts
from ..core.files import PACKAGE
from ..core.git import git
from ..core.result import Environment, Outcome
from ..core.spec import Case, digest
from ..core.units import FAMILIES, METRICS, OUTSIDE, metric
from ..core.version import __version__
from ..decoders.registry import DECODERS
from ..methods.registry import METHODS
from ..models.registry import MODELS
from ..plugins import loading as plugins

COUNTED = {
    "method": ("methods",),
    "models": ("cache", "contract", "models", "roofline"),
    "measuring": ("core/limits.py", "core/seeds.py", "machine/affinity.py", "machine/memory.py", "machine/timer.py",
                  "metrics", "trial/child"),
    "decoder": ("decoders",),
}  # fmt: skip
"""Rooms and files whose edit changes values, by the part of the result key that they make."""
_PATIENCE = 10.0  # seconds for an answer of git
SAME = ("numerics", "metrics")  # parts of the result key that every value depends on


@dataclass(frozen=True)
class Earlier:
    """The reusable quality of an earlier outcome of a case.

    ``source`` is the result key of the outcome that measured it; ``proof``: its values of single images, which identify equal images;
    ``quality`` and ``facts`` can be taken over."""

    source: str
    output_hash: str
    images_hash: str
    proof: Mapping[str, list[float]]
    quality: Mapping[str, list[float]]
    facts: SetFacts

    @classmethod
    def from_outcome(cls, outcome: Outcome | None, parts: Mapping[str, str]) -> Earlier | None:
        """Return the reusable quality of a stored outcome, or None.

        None without quality or image hash, or if the result key's ``parts`` have other numerics or definitions."""
        if outcome is None or not outcome.ok or not outcome.output_hash or not outcome.result_key:
            return None
        facts, then = outcome.facts, outcome.facts.result_parts or {}
        if not facts.images_hash:
            return None
        if any(then.get(part) != parts.get(part) for part in SAME):
            return None
        if any(metric(name).per == "set" and name not in outcome.samples for name in outcome.case.plugin_metrics):
            return None  # a metric of a plug-in failed, and is computed again
        quality = {name: list(outcome.samples[name]) for name in facts.quality_metrics or () if name in outcome.samples}
        proof = {n: v for n, v in _proving(outcome.samples).items() if n not in quality and metric(n).kind in ("fidelity", "quality")}
        source = facts.reused.source if facts.reused else outcome.result_key
        of_set = SetFacts(intervals=facts.intervals, bias=facts.bias, real=facts.real, to_full=facts.to_full)
        return cls(source, outcome.output_hash, facts.images_hash, proof, quality, of_set) if quality and proof else None

    def matches(self, output_hash: str, images_hash: str, samples: Mapping[str, list[float]]) -> bool:
        """Return whether the new values equal the earlier ones, bit by bit for each image."""
        same = (output_hash, images_hash) == (self.output_hash, self.images_hash)
        return same and dict(self.proof) == _proving(samples)

    def restore(self) -> tuple[dict[str, list[float]], SetFacts]:
        """Return the samples and facts of the skipped quality pass."""
        names = sorted(self.quality)
        return dict(self.quality), replace(self.facts, quality_metrics=names, reused=Reused(metrics=names, source=self.source))


@dataclass(frozen=True)
class KnownSeeds:
    """Samples of a case whose tokens a stored outcome has, of the same case with another number of samples.

    ``source``: its result key. ``file`` has the tokens of its ``samples`` samples, generated ``batch`` at a time, with the hash
    ``output_hash``; ``along``: its values along the full cache's tokens."""

    source: str
    file: str
    output_hash: str
    samples: int
    batch: int
    along: list[float]

    @classmethod
    def from_outcome(cls, outcome: Outcome, parts: Mapping[str, str], file: Path) -> KnownSeeds | None:
        """Return what a stored outcome has, with its tokens in ``file``; None if any of the ``parts`` but the case has changed."""
        then, case = dict(outcome.facts.result_parts or {}), outcome.case
        if {**then, "case": ""} != {**parts, "case": ""} or not file.is_file():
            return None
        values = next((list(outcome.samples[name]) for name, about in METRICS.items() if about.forced and name in outcome.samples), [])
        return cls(outcome.result_key, str(file), outcome.output_hash, case.compared, case.own_batch, values)

    def has(self, part: slice, *, along: bool = False) -> bool:
        """Return whether this part was generated alone, so that another generation would give the same bits."""
        count = len(self.along) if along else self.samples
        return part.start % self.batch == 0 and part.stop == min(part.start + self.batch, count)

    def among(self, case: Case) -> int:
        """Return the number of samples of a case that need not be generated."""
        parts = [slice(start, min(start + case.own_batch, case.compared)) for start in range(0, case.compared, case.own_batch)]
        return sum(part.stop - part.start for part in parts if self.has(part))


def _proving(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return values that are equal for equal tokens and images; plug-in metrics may not be."""
    return {name: list(values) for name, values in samples.items() if name not in OUTSIDE}


def result_parts(case: Case, environment: Environment) -> dict[str, str]:
    """Return everything that must be unchanged for a stored outcome to be valid, by part."""
    return {
        "case": case.key,
        "method": _with_plugins(COUNTED["method"], METHODS.get(case.method)),
        "models": _with_plugins(COUNTED["models"], MODELS.get(case.model)),
        "measuring": _code(COUNTED["measuring"]),
        **({"decoder": _with_plugins(COUNTED["decoder"], DECODERS.get(case.decoder["name"]))} if case.decoder else {}),
        "metrics": digest({name: metric.version for name, metric in {**METRICS, **FAMILIES}.items() if not metric.derived}),
        "numerics": environment.fingerprint,
    }


def result_key(parts: Mapping[str, str]) -> str:
    """Return the key of the parts."""
    return digest(dict(parts))


@cache
def code_identity() -> dict[str, Any]:
    """Return the commit, ``dirty`` for an edited tree, and a hash of the code in ``COUNTED``."""
    commit, _ = _commit()
    try:
        dirty = bool(git(PACKAGE, "status", "--porcelain", "--untracked-files=no", "--", ".", timeout=_PATIENCE)) if commit else None
    except CachemarkError:
        dirty = None
    return {"commit": commit, "dirty": dirty, "hash": _code(sum(COUNTED.values(), ())), "version": __version__}


def no_commit() -> str:
    """Return why runs of this copy of the code record no commit, or an empty text."""
    return _commit()[1]


@cache
def _commit() -> tuple[str, str]:
    """Return the commit of this copy, or the reason why it is not known."""
    try:
        if git(PACKAGE, "ls-files", "--", "__init__.py", timeout=_PATIENCE):
            return git(PACKAGE, "rev-parse", "HEAD", timeout=_PATIENCE), ""
    except CachemarkError as error:
        return "", str(error)
    return "", f"{PACKAGE} belongs to no commit of the repository around it."  # an installed copy in the checkout of another project


def _with_plugins(places: tuple[str, ...], thing: Any) -> str:
    """Return a hash of packages, and of the plug-ins that a method or model needs."""
    built_in, needed = _code(places), plugins.needs(thing)
    return digest([built_in, *needed]) if needed else built_in


@cache
def _code(places: tuple[str, ...]) -> str:
    """Return a hash of files, and of the Python files below folders."""
    total = hashlib.sha256()
    for place in places:
        path = PACKAGE / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:16]
