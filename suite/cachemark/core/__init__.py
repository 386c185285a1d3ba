"""Cases, outcomes, metrics, errors, names and seeds, for every room. Nothing here needs torch."""
