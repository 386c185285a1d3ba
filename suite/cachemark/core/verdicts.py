"""The verdicts that a gate gives a figure."""

REGRESSED, IMPROVED, EQUIVALENT, CHANGED = "regressed", "improved", "equivalent", "changed"
INCONCLUSIVE = "inconclusive"
NOT_COMPARED, MISSING, NEW = "not_compared", "missing", "new"
