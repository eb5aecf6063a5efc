"""Choose how tensors lie in memory: blocked channels, views instead of copies, and fewer moves."""
