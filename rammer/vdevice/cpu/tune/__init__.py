"""Measure kernels and the machine, and check kernels against NumPy."""
