"""Benchmarks: the paper's models, the machine's limits, and rammer measured against its peers."""
