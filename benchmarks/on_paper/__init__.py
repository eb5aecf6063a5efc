"""Estimate by the cost model alone, or compare its estimates with measured times."""
