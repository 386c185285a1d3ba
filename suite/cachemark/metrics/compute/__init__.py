"""The networks and formulas that metrics compute with; all of it needs torch."""
