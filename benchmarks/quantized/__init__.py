"""Measure quantized networks."""
