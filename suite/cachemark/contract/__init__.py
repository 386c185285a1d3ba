"""The contract between a model and a cache method."""
