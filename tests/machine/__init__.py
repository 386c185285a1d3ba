"""Tests of devices, leases, clocks and what disturbs a measurement."""
