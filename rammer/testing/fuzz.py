"""Fuzz the compiler and its plugins: `python -m rammer.testing.fuzz`. The tool is `tools/testing` in the repository."""

from rammer.testing.tools import run

if __name__ == "__main__":
    run("fuzz")
