"""Verdicts of a gate on a value."""

REGRESSED, IMPROVED, EQUIVALENT, CHANGED = "regressed", "improved", "equivalent", "changed"
INCONCLUSIVE = "inconclusive"
NOT_COMPARED, MISSING, NEW = "not_compared", "missing", "new"
JUDGED = (REGRESSED, IMPROVED, EQUIVALENT, CHANGED)  # those that say whether a value is worse

ENDED = {0: "Passed", 1: "Regressed", 3: "Not resolved", 4: "Too little was judged", 5: "Infrastructure"}
"""What the exit codes of a judgement mean."""
