"""Write programs as C projects that need no Python."""
