"""The words that every room uses: cases, outcomes, metrics, errors, names and seeds. Nothing here needs torch."""
