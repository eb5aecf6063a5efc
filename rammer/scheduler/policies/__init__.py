"""Provide the built-in scheduling policies, and what they share."""
