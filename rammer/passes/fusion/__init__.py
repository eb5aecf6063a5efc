"""Fuse several operators into one, and compose the expression that they compute together."""
