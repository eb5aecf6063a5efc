"""The built-in scheduling policies, and what they share."""
