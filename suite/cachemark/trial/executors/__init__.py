"""Executors, which run trials on the devices of this machine or of a cluster."""
