"""The terms of the report and their meanings, shown on hover and focus."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.units import METRICS

_WORDS = {
    "model": "An image generator with its weights.",
    "method": "A change to the cache of keys and values, or to the computation itself, that saves memory or time.",
    "budget": "How much a method may keep or compute, as a share of the full cache: entries in next-token models, bytes of keys and "
              "values in next-scale models, FLOPs of an image in masked models.",
    "full cache": "The baseline of every ratio: the fastest plain cache that we could write, nothing evicted and nothing reused.",
    "case": "One cell of a plan: all settings that affect the numbers. Its key is a hash of them.",
    "trial": "One fresh process that runs cases.",
    "sample": "One raw measured value. All of them are kept.",
    "fidelity": "Closeness of a method to the full cache at the same seeds.",
    "quality": "How good the images are by themselves, judged against real images or their own conditions. Never combined with fidelity.",
    "floor": "The full cache at other seeds: the score of unrelated images.",
    "numerics": "The full cache against itself at another batch or precision: the smallest difference that this device resolves.",
    "speed-up": "Median latency of the full cache over median latency of the method, in the same cell. Computed when the page is made.",
    "saving": "1 − bytes (or FLOPs) over those of the full cache.",
    "interval": "The range that contains the true value with the stated confidence.",
    "Pareto front": "The cases that no other beats in both quantities of a chart.",
    "true ratio": "The share of entries actually kept, after rounding to whole lines.",
    "coverage": "The share of the baseline's cases of which at least one figure was compared.",
    "false-alarm rate": "How often the gate calls a regression where nothing changed.",
    "numerics fingerprint": "Identifies the device, driver, libraries and threads under which outputs are bit-equal.",
}


def glossary() -> Mapping[str, str]:
    """Meanings by word, metrics included, by the alphabet."""
    held = {**{metric.title: metric.meaning for metric in METRICS.values()}, **_WORDS}
    return dict(sorted(held.items(), key=lambda item: item[0].casefold()))
