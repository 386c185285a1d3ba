"""Tests of devices, leases, clocks and disturbances of a measurement."""
