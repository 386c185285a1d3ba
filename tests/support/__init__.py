"""What tests of several rooms share: a small model as a plug-in, plans over it, stand-ins for executors and for NVML."""
