"""Caches of the tests: keyed by content, apart from the user's, kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rammer-tests"
MOST_BYTES = 4 << 30


def nbytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; a file that another process deletes meanwhile has none."""
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.stat(os.path.join(path, name)).st_size
            except OSError:
                continue
    return found
