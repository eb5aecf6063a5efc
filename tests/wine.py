"""Run Windows programs by wine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Run a program alone: the first run makes wine's folder, and a second one at the same time fails."""
    if shutil.which("wine") is None:
        pytest.skip("no wine here")
    with Path(tempfile.gettempdir(), f"rammer-wine-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(["wine", program], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
