"""The asv suite, which tracks the speed of the code over commits; for measured plans, use `export asv`."""
