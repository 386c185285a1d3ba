"""Plans: reading, expansion into cases, cost, and reuse of stored results."""
