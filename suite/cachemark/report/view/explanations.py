"""The rule behind each flag, verdict and sentence, in one or two plain sentences."""

from __future__ import annotations

FLAGS = {
    "not ranked": "A method has a place only where its images agree with the full cache's better than the full cache's own images at "
                  "other seeds do, and where its images have not collapsed (precision at least 10 % where it was measured).",
    "lossless on this device": "Shown where a method's distance from the full cache is no larger than that of the full cache from itself "
                               "at another batch or precision: this device cannot tell the two apart.",
    "fake compression": "Shown where live entries fall by more than 1 %, but allocated bytes by less than 90 % of what live ones save.",
    "state eats the saving": "Shown where what a method keeps besides keys and values is at least as large as what it saves of them.",
    "quality only": "Shown where the method needs an attention kernel that the full cache does not: a ratio of times would "
                    "compare kernels.",
    "own kernel": "Shown where the method needs what the full cache's attention kernel does not return, and has one that is as fused.",
    "no speed-up": "Shown where the full cache of the same cell has no figures, latency was not measured, or attention kernels differ.",
    "unanchored": "Shown where nobody has shown on these weights that this code reaches the published figures of the model.",
}
VERDICTS = {
    "regressed": "What costs more than the threshold above the baseline (speed, peak memory), what must be equal and is worse (bytes, "
                 "fidelity), or a case that had figures and has none.",
    "improved": "The same rules the other way round.",
    "equivalent": "Within the threshold, or equal to the last bit where that is asked.",
    "changed": "Differs without being better or worse, such as other output at the same mean.",
    "inconclusive": "The pairs measured so far tell neither a regression nor equivalence apart: more of them are needed.",
    "not_compared": "A comparison would mislead: another machine, other numerics, another definition, or too few values.",
    "missing": "In the baseline, and not in this run.",
    "new": "In this run, and not in the baseline.",
}
ADVICE = {
    "regressed": "Open the case for its raw samples; measure it again (cachemark run, then cachemark check); if the change is meant, "
                 "promote a new baseline and say why.",
    "changed": "Look whether the change of output is meant.",
    "missing": "Find out why the case was not reached: the tab Not measured says what ended how.",
    "inconclusive": "Buy more pairs, or leave it: nothing is shown to be worse.",
    "improved": "If it is meant, promote a new baseline, so that it is kept.",
}
SENTENCES = ("Made from the table by rule: the fastest ranked method of this budget, what it saves and costs, and whom the table leaves "
             "out. Nothing is called faster while the interval of its speed-up reaches down to 1.")
PLACES = ("Places are given within one budget, to methods that may be ranked: by FID where it was measured, else by speed-up. Where "
          "intervals overlap the order may be chance.")
ALARMS = ("Each night the same code is compared with itself beside everything else. Whatever is told of it is a false alarm, so the share "
          "of nights with one is how often the gate is wrong.")
MISSING = "Every case without figures and every figure that a case of its kind usually has stands here with the reason."


def of_flag(text: str) -> str:
    """The rule behind a flag, empty for one without a rule of its own."""
    return FLAGS.get(text, "")


def of_verdict(verdict: str) -> str:
    """The rule behind a verdict, empty for an unknown one."""
    return VERDICTS.get(verdict, "")
