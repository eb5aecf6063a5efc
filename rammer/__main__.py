"""Run `python -m rammer`: the full command line, or its run-only part if the compiler is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from rammer.errors import COMPILING


def main() -> int | None:
    """Run the command line; return the exit status."""
    if all(map(find_spec, ("click", "rich", *COMPILING))):
        from rammer.cli.commands import main as whole

        whole()  # which exits by itself
        return None
    from rammer.cli.run_only import main as run_only

    return run_only()


if __name__ == "__main__":
    sys.exit(main())
