"""Verdicts: runs against baselines, pairs of arms, nights, incidents and anchors."""
