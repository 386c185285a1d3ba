"""The one attention function and its kernels."""
