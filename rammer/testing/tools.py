"""Start a tool of the package `rammer-testing`, which is not part of the compiler's wheel."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from runpy import run_module


def run(tool: str) -> None:
    """Run the tool as a program, with this process's arguments. Exits with status 2 if it is not installed."""
    if find_spec("rammer_testing") is None:
        print("error: rammer-testing is not installed", file=sys.stderr)
        print("  hint: pip install ./tools/testing in a checkout of rammer", file=sys.stderr)
        sys.exit(2)
    run_module(f"rammer_testing.{tool}", run_name="__main__", alter_sys=True)
