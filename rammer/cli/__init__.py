"""The `rammer` command: argument parsing and printing only, one file for each family of commands."""
