"""Parse arguments and print results for the `rammer` command: one file for each family of commands."""
