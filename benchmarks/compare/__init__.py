"""Measure rammer against its peers and against other commits."""
