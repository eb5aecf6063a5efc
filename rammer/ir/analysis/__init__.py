"""Analyze tile programs and plans: accesses, footprints, dependencies, happens-before."""
