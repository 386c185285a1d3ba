"""Generators of the tables in docs/results.md and docs/results/validation.md, from stores and from the JSON files of `studies/`."""
