"""Reuse of stored outcomes: the key under which one counts again, and the quality that one measured anew may take over.

A stored outcome counts as long as nothing has changed that its values come from. Of the code that is (``COUNTED``) what runs between a
case and its values in the child process: storage, contract, models and methods, FLOPs and roofline times, the metrics, the
child itself with its clock, its counting of memory and its CPU affinity, and the seeds. Not counted is what decides whether, when or where
a child is started (plans, prices, deadlines, the supervisor, executors, leases, clocks), what watches the machine meanwhile, or
what stores, judges or shows. Whatever a plan decides stands in the case, and definitions of metrics have versions.

Plug-ins that a run loads beside are not in the key, because they are not in the process: none has ever been imported where a case runs
that does not need it (:mod:`cachemark.trial.supervisor`), whatever else it does there. Those that define its method or its model are.

A quality pass makes thousands of images; fidelity makes some dozens at the same seeds anyway. If the hash of *their* tokens, that of
the images, and every value of them is what it was, under the same numerics and definitions, then neither the tokens nor how they are
decoded has changed, and what was found in the thousands is taken over, marked with the outcome that measured it. The values alone would
not do: those of the full cache compare it with itself.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..core.files import PACKAGE
from ..core.result import IMAGES, Environment, Outcome
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
REUSED = "reused"  # of an outcome's facts: {"metrics": names, "from": the result key of the outcome that measured them}
FACTS = ("intervals", "bias", "real", "to_full")  # what a quality pass says beside its values
SAME = ("numerics", "metrics")  # parts of the result key without which a value would be another one


@dataclass(frozen=True)
class Earlier:
    """An earlier outcome of a case, as far as its quality can be reused. ``source`` is the result key of the outcome that
    measured its quality; ``proof``: its values of single images, by which equal images are told;
    ``quality`` and ``facts`` can be taken over."""

    source: str
    output_hash: str
    images_hash: str
    proof: Mapping[str, list[float]]
    quality: Mapping[str, list[float]]
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, outcome: Outcome | None, parts: Mapping[str, str]) -> Earlier | None:
        """That of a stored outcome of the case, or None where it has no quality, or no hash of its images, or was measured with other
        numerics or definitions than the ``parts`` of the result key name."""
        if outcome is None or not outcome.ok or not outcome.output_hash or not outcome.result_key or IMAGES not in outcome.facts:
            return None
        then = outcome.facts.get("result_parts", {})
        if any(then.get(part) != parts.get(part) for part in SAME):
            return None
        names = outcome.facts.get("quality_metrics", ())
        if any(metric(name).per == "set" and name not in outcome.samples for name in outcome.case.plugin_metrics):
            return None  # a metric of a plug-in failed, and is asked again
        quality = {name: list(outcome.samples[name]) for name in names if name in outcome.samples}
        proof = {n: v for n, v in _proving(outcome.samples).items() if n not in quality and metric(n).kind in ("fidelity", "quality")}
        source = outcome.facts.get(REUSED, {}).get("from", outcome.result_key)
        facts = {key: outcome.facts[key] for key in FACTS if key in outcome.facts}
        return cls(source, outcome.output_hash, outcome.facts[IMAGES], proof, quality, facts) if quality and proof else None

    def matches(self, output_hash: str, images_hash: str, samples: Mapping[str, list[float]]) -> bool:
        """True where the new values are the earlier ones, image by image and to the last bit."""
        same = (output_hash, images_hash) == (self.output_hash, self.images_hash)
        return same and dict(self.proof) == _proving(samples)

    def restore(self) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Samples and facts of the pass that need not be made."""
        marked = {"metrics": sorted(self.quality), "from": self.source}
        return dict(self.quality), {**self.facts, "quality_metrics": sorted(self.quality), REUSED: marked}


def _proving(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Figures that are the same again where tokens and images are: those of metrics of plug-ins may not be, or be missing once."""
    return {name: list(values) for name, values in samples.items() if name not in OUTSIDE}


def result_parts(case: Case, environment: Environment) -> dict[str, str]:
    """Everything that must be unchanged for a stored outcome to count, by part."""
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
    """One key of the parts."""
    return digest(dict(parts))


@cache
def code_identity() -> dict[str, Any]:
    """Commit, ``dirty`` where the tree differs from it, and a hash of the code whose edit changes values."""
    ours = _git("ls-files", "--", str(PACKAGE / "__init__.py"))  # an installed copy may lie in the checkout of something else
    commit = _git("rev-parse", "HEAD") if ours else ""
    dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE))) if commit else None
    return {"commit": commit, "dirty": dirty, "hash": _code(sum(COUNTED.values(), ())), "version": __version__}


def _git(*arguments: str) -> str:
    """Output of a git command in the checkout around the package, empty where there is none."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _with_plugins(places: tuple[str, ...], thing: Any) -> str:
    """Hash of whole rooms of the package, and of the plug-ins without which a method or a model cannot run, which build on these rooms."""
    built_in, needed = _code(places), plugins.needs(thing)
    return digest([built_in, *needed]) if needed else built_in


@cache
def _code(places: tuple[str, ...]) -> str:
    return _hashed(path for place in places for path in _files(PACKAGE / place))


def _files(path: Path) -> list[Path]:
    """A file itself, or the Python files below a folder."""
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def _hashed(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]
