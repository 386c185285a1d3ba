"""Shared helpers of tests: a small model as a plug-in, plans for it, stand-ins for executors and for NVML."""
