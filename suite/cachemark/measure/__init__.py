"""From a plan to outcomes."""
