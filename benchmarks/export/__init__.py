"""Benchmarks of exported C projects."""
