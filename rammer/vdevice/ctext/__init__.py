"""Print tile programs as C-like text, and the functions that this text calls."""
