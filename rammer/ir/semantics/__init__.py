"""Evaluate expressions and plans by NumPy, and bound rounding errors. Known as: reference semantics."""
