"""Verdicts of a gate on a value."""

REGRESSED, IMPROVED, EQUIVALENT, CHANGED = "regressed", "improved", "equivalent", "changed"
INCONCLUSIVE = "inconclusive"
NOT_COMPARED, MISSING, NEW = "not_compared", "missing", "new"
JUDGED = (REGRESSED, IMPROVED, EQUIVALENT, CHANGED)  # verdicts on whether a value is worse

ENDED = {0: "Passed", 1: "Regressed", 3: "Not resolved", 4: "Too little was compared", 5: "Infrastructure"}
"""Meaning of the exit codes of a check."""
