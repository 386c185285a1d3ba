"""The rule behind each flag, verdict and sentence, and the terms of the report."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.units import FAMILIES, METRICS
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, MISSING, NEW, NOT_COMPARED, REGRESSED

FLAGS = {
    "not ranked": "A method is ranked only if its images agree with the full cache's better than the full cache's own images at other "
                  "seeds do, have not collapsed (precision of at least 10 % where it was measured), and are shown by a test to be "
                  "non-inferior to the full cache's. Nothing shows that where quality was not measured, seeds are too few or a FID has no "
                  "interval.",
    "lossless on this device": "The method's distance from the full cache is no larger than that of the full cache from itself at another "
                               "batch or precision: this device cannot tell the two apart.",
    "not freed": "Live entries fall by more than 1 %, but allocated bytes fall by less than 90 % of the live bytes saved.",
    "overhead exceeds saving": "The method's state besides keys and values is at least as large as its saving in keys and values.",
    "quality only": "The method needs an attention kernel that the full cache does not use: a ratio of times would compare kernels.",
    "different kernel": "The method needs something that the full cache's attention kernel does not return, and has an equally fused "
                        "kernel of its own.",
    "no speedup": "The full cache of the same cell has no results, latency was not measured, or the attention kernels differ.",
    "low utilization": "The full cache uses less than 40 % of both the bandwidth and the peak FLOP/s of its device.",
    "implausible speedup": "The speedup is above 1, and more than 1.1 times what the bytes and FLOPs saved allow; under a decoder, than "
                           "that of its method at one token a pass, times the tokens that are drawn a pass.",
    "not reproduced": "This code has not been shown to reach the model's published values with these weights.",
}
VERDICTS = {
    REGRESSED: "Costs more than the threshold above the baseline (speed, peak memory), is worse where it must be equal (bytes, "
               "fidelity), or had results in the baseline and has none now.",
    IMPROVED: "The rules for a regression, the other way round.",
    EQUIVALENT: "Within the threshold, or bit-equal where that is required.",
    CHANGED: "Different, but neither better nor worse, such as other output at the same mean.",
    INCONCLUSIVE: "The pairs measured so far show neither a regression nor equivalence: more are needed.",
    NOT_COMPARED: "A comparison would mislead: another machine, other numerics, another definition, or too few values.",
    MISSING: "In the baseline, but not in this run.",
    NEW: "In this run, but not in the baseline.",
}
ADVICE = {
    REGRESSED: "Look at the raw samples of the case and measure it again (cachemark run, then cachemark check). If the change is "
               "intended, promote a new baseline with the reason.",
    INCONCLUSIVE: "Measure more pairs, or leave it: nothing is shown to be worse.",
    MISSING: "Find out why the case is not in this run: compare its plan with that of the baseline.",
    CHANGED: "Check whether the change of output is intended.",
    IMPROVED: "If it is intended, promote a new baseline to keep it.",
}
ANSWERS = ("The fastest method among those whose images are shown to be non-inferior to the full cache's, by a test at the same seeds, "
           "corrected over all comparisons of this report, and whose speedup is shown to be above 1. If there is none, it is the full "
           "cache. Beside it stand, at the same seeds, images of the full cache, of that method, and of the worst of the others.")
PLACES = ("Rank within a budget among methods that are shown to be non-inferior to the full cache: by FID where it was measured, else by "
          "speedup. Where intervals overlap, the order may be chance.")
ALARMS = ("Every night the same code is also compared with itself. A change found there is a false alarm, so the share of nights with one "
          "is the false-alarm rate of the gate.")
MISSING = "Every case without results, and every value this run lacks that such cases usually have, with the reason."
_WORDS = {
    "model": "An image generator with its weights.",
    "method": "A change to the cache of keys and values, or to the computation itself, that saves memory or time.",
    "budget": "How much a method may keep or compute, as a share of the full cache: entries in next-token models, bytes of keys and "
              "values in next-scale models, FLOPs of an image in masked models.",
    "full cache": "What every ratio is against: the fastest plain cache that we could write, nothing evicted and nothing reused.",
    "case": "One cell of a plan: all settings that affect the numbers. Its key is a hash of them.",
    "trial": "One fresh process that runs cases.",
    "sample": "One raw measured value. All of them are kept.",
    "fidelity": "Closeness of a method to the full cache at the same seeds.",
    "quality": "How good the images are by themselves, judged against real images or their own conditions. Never combined with fidelity.",
    "different-seed reference": "The full cache at other seeds, i.e. unrelated images.",
    "batch-size reference (noise floor)": "The full cache at half the batch size. Only rounding differs, so smaller differences are noise.",
    "speedup": "Median latency of the full cache, timed in turns with the method, over median latency of the method, in the same cell. "
                "Computed when the page is made.",
    "saving": "1 − bytes (or FLOPs) over those of the full cache.",
    "interval": "The range that contains the true value with the stated confidence.",
    "Pareto front": "The cases that no other beats in both quantities of a chart.",
    "true ratio": "The share of entries actually kept, after rounding to whole lines.",
    "coverage": "The share of the baseline's cases of which at least one value was compared.",
    "false-alarm rate": "How often the gate calls a regression where nothing changed.",
    "numerics fingerprint": "Identifies the device, driver, libraries and threads under which outputs are bit-equal.",
}


def glossary() -> Mapping[str, str]:
    """Meanings by word, metrics included, by the alphabet."""
    meanings = {**{metric.title: metric.meaning for metric in (*METRICS.values(), *FAMILIES.values())}, **_WORDS}
    return dict(sorted(meanings.items(), key=lambda item: item[0].casefold()))
