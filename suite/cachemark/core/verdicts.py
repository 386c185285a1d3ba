"""The verdicts that a gate gives a figure."""

REGRESSED, IMPROVED, EQUIVALENT, CHANGED = "regressed", "improved", "equivalent", "changed"
INCONCLUSIVE = "inconclusive"
NOT_COMPARED, MISSING, NEW = "not_compared", "missing", "new"
JUDGED = (REGRESSED, IMPROVED, EQUIVALENT, CHANGED)  # those that say whether a figure is worse
