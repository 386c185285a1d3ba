"""Words of the report and what they mean, for whoever points at one."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.units import METRICS

_WORDS = {
    "model": "A generator of images with its weights.",
    "method": "What is done to the cache of keys and values, or to what is computed at all.",
    "budget": "How much a method may keep or compute, as a share of the full cache: entries in next-token models, bytes of keys and "
              "values in next-scale models, FLOPs of an image in masked models.",
    "full cache": "The baseline of every ratio: the fastest plain cache that could be written, nothing dropped and nothing reused.",
    "case": "One cell of a plan: everything that changes the numbers. Its key is a hash of all of it.",
    "trial": "One fresh process that runs cases.",
    "sample": "One raw measured value. All are kept.",
    "fidelity": "How near a method stays to the full cache at the same seeds.",
    "quality": "How good the images are by themselves, against real ones or their own conditions. Never mixed with fidelity.",
    "floor": "The full cache at other seeds: what unrelated images score.",
    "numerics": "The full cache against itself at another batch or precision: what this device cannot tell apart.",
    "speed-up": "Median latency of the full cache over median latency of the method, in the same cell. Derived when the page is made.",
    "saving": "1 − bytes (or FLOPs) over those of the full cache.",
    "interval": "Where the true figure lies with the sureness that is stated.",
    "Pareto front": "The cases that no other beats in both quantities of a chart.",
    "true ratio": "The share of entries that was really kept, after rounding to whole lines.",
    "coverage": "The share of the baseline's cases of which at least one figure was judged.",
    "false-alarm rate": "How often the gate calls a regression where nothing changed.",
    "numerics fingerprint": "Names the device, driver, libraries and threads under which outputs are equal to the last bit.",
}


def glossary() -> Mapping[str, str]:
    """Meanings by word, metrics included, by the alphabet."""
    held = {**{metric.title: metric.meaning for metric in METRICS.values()}, **_WORDS}
    return dict(sorted(held.items(), key=lambda item: item[0].casefold()))
