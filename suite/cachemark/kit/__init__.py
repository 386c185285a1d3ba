"""Checks of a method, a model or a metric; ``cachemark test`` and the contract tests run them."""
