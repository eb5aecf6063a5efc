"""Count the forks of this process since it imported rammer.

A forked child has none of its parent's threads and needs new locks. Comparing this count is faster than asking the
system for the process id, which takes longer than a small network's run.
"""

from __future__ import annotations

import os

count = 0


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
