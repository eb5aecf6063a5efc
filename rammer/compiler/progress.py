"""Draw the progress of a compilation: a line on a terminal, or in the cell of a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rammer import config

BEGIN_S = 0.5  # what is done earlier is not drawn
EVERY_S = 0.1  # between two pictures
COLUMNS = 24  # of a bar


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback for progress, `(what, done, total)`, that draws a bar. Erases it at the end.

    It draws nothing if stderr is neither a terminal nor a notebook's, with RAMMER_PROGRESS=0, or in a thread beside the
    main one, as while a session compiles in the background.
    """
    wanted = config.boolean("RAMMER_PROGRESS") and threading.current_thread() is threading.main_thread()
    draw = (_notebook() or _terminal()) if wanted else None
    began_s = last_s = time.monotonic()
    drawn = False

    def show(what: str, done: int, total: int) -> None:
        nonlocal last_s, drawn
        now_s = time.monotonic()
        due = now_s - last_s >= EVERY_S or done >= total
        if draw and due and now_s - began_s >= BEGIN_S:
            filled = COLUMNS * done // max(total, 1)
            draw(f"{what} {'█' * filled}{'░' * (COLUMNS - filled)} {done}/{total}  {now_s - began_s:.0f} s")
            last_s, drawn = now_s, True

    try:
        yield show
    finally:
        if draw and drawn:
            draw("")


def _terminal() -> Callable[[str], None] | None:
    stream = sys.stderr
    if not (stream and stream.isatty()):
        return None

    def draw(text: str) -> None:
        stream.write(f"\r\x1b[K{text}")
        stream.flush()

    return draw


def _notebook() -> Callable[[str], None] | None:
    """Return a function that replaces one output of the cell that runs, if IPython's kernel is there."""
    shell: Any = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    if not getattr(shell, "kernel", None):
        return None
    display, handles = import_module("IPython.display").display, list[Any]()

    def draw(text: str) -> None:
        if handles:
            handles[0].update({"text/plain": text}, raw=True)
        else:
            handles.append(display({"text/plain": text}, raw=True, display_id=True))

    return draw
