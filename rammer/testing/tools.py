"""Find the package `rammer-testing`, which is not part of the compiler's wheel, and start its tools."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from runpy import run_module
from types import ModuleType

from rammer.about import TESTING

MISSING = f"{TESTING} is not installed"
HINT = f"pip install {TESTING}, or ./tools/testing of a checkout"


def run(tool: str) -> None:
    """Run the tool as a program, with this process's arguments. Exits with status 2 if it is not installed."""
    if find_spec("rammer_testing") is None:
        print(f"error: {MISSING}\n  hint: {HINT}", file=sys.stderr)
        sys.exit(2)
    run_module(f"rammer_testing.{tool}", run_name="__main__", alter_sys=True)


def conformance() -> ModuleType:
    """Import the conformance kit, which also needs pytest. Raises ImportError if the package is not installed."""
    if find_spec("rammer_testing") is None:
        raise ImportError(f"{MISSING}\n  hint: {HINT}", name="rammer_testing")
    return import_module("rammer_testing.conformance")
