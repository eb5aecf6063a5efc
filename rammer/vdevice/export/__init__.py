"""Write compiled programs as projects of C sources that need no Python."""
