"""Run `python -m rammer`: the full command line, or its run-only part if the compiler is not installed."""

from __future__ import annotations

import sys
from io import TextIOWrapper

from rammer.errors import RammerError, has_compiler, require_posix


def main() -> int | None:
    """Run the command line; return the exit status."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack some characters
    try:
        require_posix()
    except RammerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        if not has_compiler():
            from rammer.cli.run_only import main as run_only

            return run_only()
        from rammer.cli.commands import main as whole

        whole()  # which exits by itself
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        return 130
    return None


if __name__ == "__main__":
    sys.exit(main())
