"""Tests of plans, their prices and deadlines."""
