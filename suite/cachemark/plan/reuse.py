"""The quality of an earlier outcome, which stands again where the same case gave the same tokens and the same images.

A quality pass makes thousands of images; fidelity makes some dozens at the same seeds anyway. If the hash of *their* tokens, that of
the images, and every figure of them is what it was, under the same numerics and definitions, then neither the tokens nor how they are
decoded has changed, and what was found in the thousands is taken over, marked with the outcome that measured it. The figures alone would
not do: those of the full cache compare it with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.result import IMAGES, Outcome
from ..core.units import metric

CARRIED = "carried"  # of an outcome's facts: {"metrics": names, "from": the skip key of the outcome that measured them}
FACTS = ("intervals", "real", "to_full")  # what a quality pass says beside its figures
SAME = ("numerics", "metrics")  # parts of the skip key without which a figure would be another one


@dataclass(frozen=True)
class Earlier:
    """What is known of a case from before. ``source`` is the skip key of the outcome that measured its quality; ``proof``: its figures of
    single images, by which equal images are told; ``quality`` and ``facts`` are what can be taken over."""

    source: str
    output_hash: str
    images_hash: str
    proof: Mapping[str, list[float]]
    quality: Mapping[str, list[float]]
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, outcome: Outcome | None, parts: Mapping[str, str]) -> Earlier | None:
        """That of a stored outcome of the case, or None where it has no quality, or no hash of its images, or was measured with other
        numerics or definitions than the ``parts`` of the skip key name."""
        if outcome is None or not outcome.ok or not outcome.output_hash or not outcome.skip_key or IMAGES not in outcome.facts:
            return None
        then = outcome.facts.get("skip_parts", {})
        if any(then.get(part) != parts.get(part) for part in SAME):
            return None
        names = outcome.facts.get("quality_metrics", ())
        quality = {name: list(outcome.samples[name]) for name in names if name in outcome.samples}
        proof = {n: list(v) for n, v in outcome.samples.items() if n not in quality and metric(n).kind in ("fidelity", "quality")}
        source = outcome.facts.get(CARRIED, {}).get("from", outcome.skip_key)
        facts = {key: outcome.facts[key] for key in FACTS if key in outcome.facts}
        return cls(source, outcome.output_hash, outcome.facts[IMAGES], proof, quality, facts) if quality and proof else None

    def stands(self, output_hash: str, images_hash: str, samples: Mapping[str, list[float]]) -> bool:
        """Whether what has just been measured is what it was, image by image and to the last bit."""
        same = (output_hash, images_hash) == (self.output_hash, self.images_hash)
        return same and dict(self.proof) == {name: list(values) for name, values in samples.items()}

    def again(self) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Samples and facts of the pass that need not be made."""
        marked = {"metrics": sorted(self.quality), "from": self.source}
        return dict(self.quality), {**self.facts, "quality_metrics": sorted(self.quality), CARRIED: marked}
