"""Inject bugs into the compiler: `python -m rammer.testing.mutate`. The tool is `tools/testing` in the repository."""

from rammer.testing.tools import run

if __name__ == "__main__":
    run("mutate")
