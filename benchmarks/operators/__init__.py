"""Single operators, next to peers."""
