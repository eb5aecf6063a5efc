"""Measure one thing at a time: calls, caches, loops, checks, the machine's limits."""
