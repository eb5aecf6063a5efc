"""How often this process was forked since it imported rammer: a child has none of the threads, and locks of its own.

Asking the system for the process takes longer than a small network's run.
"""

from __future__ import annotations

import os

count = 0


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
