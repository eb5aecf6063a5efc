"""Linter, formatter and type checker find nothing: CI runs what a contributor should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from caches import CACHE
from longest import LONGEST

ROOT = Path(__file__).parents[2]
PACKAGES = [part for name in ("rammer", "rammer_viz", "rammer_torch", "rammer_dask") for part in ("-p", name)]
COMMANDS = {
    "lint": ("ruff", "check", "--no-cache", "."),
    "format": ("ruff", "format", "--no-cache", "--check", "."),
    "types": ("mypy", "--no-error-summary", "--cache-dir", str(CACHE / "mypy"), *PACKAGES),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_tool_finds_nothing(name: str) -> None:
    command = [sys.executable, "-m", *COMMANDS[name]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(COMMANDS[name])}\n{done.stdout}{done.stderr}"


def test_the_longest_files_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / name).exists()] == []
