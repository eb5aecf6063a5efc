"""Measure on GPUs and other accelerators, or compile for them."""
