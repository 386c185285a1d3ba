"""Executors, which run trials on the devices of this machine or on those of a cluster."""
