"""Cases, outcomes, metrics, errors, names and seeds, for every package. Nothing here needs torch."""
