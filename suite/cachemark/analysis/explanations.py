"""Rules for flags and verdicts, and the glossary of the report."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.units import FAMILIES, METRICS
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, MISSING, NEW, NOT_COMPARED, REGRESSED
from ..stats.non_inferiority import ALPHA

FLAGS = {
    "not ranked": "Ranked are methods with non-inferior quality, precision of at least 10 %, and images closer to the full cache's than "
                  "images of other seeds are (rank-sum test).",
    "lossless on this device": "The distance from the full cache is at most the distance of the batch-size reference (noise floor).",
    "not freed": "Used KV memory falls by more than 1 %, but allocated KV memory by less than 90 % of that.",
    "busy machine": "While it was timed, other processes kept more than a quarter of a processor busy. Its times may be too long.",
    "overhead > savings": "The method's state is at least as large as its savings in keys and values.",
    "not idle": "The method's declared costs equal the full cache's, but its tokens differ from the full cache's.",
    "not timed": "The method needs an attention kernel that the full cache does not use, so times are not comparable.",
    "different kernel": "The method uses an equally fused kernel that returns more than the full cache's kernel.",
    "no speedup": "The full cache has no results, latency was not measured, or the attention kernels differ.",
    "low utilization": "The full cache uses less than 40 % of both the memory bandwidth and the peak FLOP/s of the device.",
    "implausible speedup": "The speedup is above 1.1 × the roofline speedup.",
    "not reproduced": "This code has not reproduced the model's published values with these weights.",
}
VERDICTS = {
    REGRESSED: "Speed or peak memory worse by more than the threshold, bytes or fidelity worse, or results missing.",
    IMPROVED: "Better by the rules for a regression.",
    EQUIVALENT: "Within the threshold, or bit-equal where required.",
    CHANGED: "Different, but neither better nor worse.",
    INCONCLUSIVE: "Neither a regression nor equivalence is significant yet.",
    NOT_COMPARED: "Other machine, numerics fingerprint or definition, or too few values.",
    MISSING: "In the baseline, but not in this run.",
    NEW: "In this run, but not in the baseline.",
}
ADVICE = {
    REGRESSED: "Check the raw samples and measure again. If the change is intended, promote a new baseline.",
    INCONCLUSIVE: "Measure more pairs.",
    MISSING: "Compare the plan with the baseline's plan.",
    CHANGED: "Check whether the change of output is intended.",
    IMPROVED: "If it is intended, promote a new baseline.",
}
ANSWERS = ("The fastest method with non-inferior quality (paired test at the same seeds, corrected over all comparisons of this report) "
           "and a speedup interval above 1×; otherwise the full cache. Images: full cache, this method, and the worst method.")
PLACES = ("Rank within a budget among non-inferior methods: by FID if measured, else by speedup. Overlapping intervals are ties (=), "
          "unless one method is closer to the full cache at significantly more seeds.")
PLACINGS = (f"Methods of a budget, compared with each other at the same seeds; family-wise error rate {100 * ALPHA:g} % over all pairs of "
            "this report. Quality: by the mean (Gaffke's test). Agreement or distance of tokens: by the number of seeds won "
            "(sign test). Place: 1 + the number of significantly better methods; = if another method cannot be told apart.")
ALARMS = "Nightly A/A comparisons of the same code: every change found there is a false alarm."
MISSING_VALUES = "Cases without results, and values that other cases of the run have."
_WORDS = {
    "model": "Image generator with its weights.",
    "method": "Change to the KV cache, or to the computation itself, that saves memory or time.",
    "budget": "Fraction of the full cache that is kept: entries (next-token), bytes (next-scale) or FLOPs (masked models).",
    "full cache": "Baseline of every ratio: nothing evicted, nothing reused. For masked models: no caching.",
    "case": "All settings that affect the numbers; the key is a hash of them.",
    "trial": "Worker process that runs cases.",
    "sample": "One raw measured value.",
    "fidelity": "Closeness of a method to the full cache at the same seeds.",
    "quality": "Image quality, measured against real images or the requested conditions. Never combined with fidelity.",
    "different-seed reference": "The full cache at other seeds, i.e. unrelated images.",
    "batch-size reference (noise floor)": "The full cache at half the batch size. Only rounding differs, so smaller differences are noise.",
    "speedup": "Median latency of the full cache, timed in turns with the method, over median latency of the method, in the same group.",
    "saving": "1 − bytes (or FLOPs) over the full cache's.",
    "interval": "Range that contains the true value with the stated confidence.",
    "non-inferior": "A paired test shows that the quality loss is below the margin.",
    "roofline time": "Time that the required bytes and FLOPs take at the peak rates of the device.",
    "Pareto front": "Cases that no other case beats in both quantities of a chart.",
    "true ratio": "Fraction of entries kept after rounding to whole lines.",
    "coverage": "Fraction of the baseline's cases with at least one compared value.",
    "false-alarm rate": "How often the gate reports a regression although nothing changed.",
    "numerics fingerprint": "Identifies the device, driver, libraries and threads. Outputs are bit-equal only if it is equal.",
}


def glossary() -> Mapping[str, str]:
    """Return meanings by word, metrics included, in alphabetical order."""
    meanings = {**{metric.title: metric.meaning for metric in (*METRICS.values(), *FAMILIES.values())}, **_WORDS}
    return dict(sorted(meanings.items(), key=lambda item: item[0].casefold()))
