"""Verdicts: runs against baselines, pairs of sides, nights, incidents and anchors."""
