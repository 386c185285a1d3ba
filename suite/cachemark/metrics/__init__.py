"""Metric definitions: plain functions from raw values to values."""
