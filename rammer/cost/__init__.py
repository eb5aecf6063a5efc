"""Estimate the cost of an rTask on a device: its own work, and fetching its operands from the level that holds them."""
