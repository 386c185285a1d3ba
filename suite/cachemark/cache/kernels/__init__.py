"""Attention kernels: a table tried in order, and one file for each kernel."""
