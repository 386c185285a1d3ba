"""Checks of what a method, a model or a metric from anywhere owes, as our own contract tests make them."""
