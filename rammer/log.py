"""Show messages of `logging`. Each module logs to the logger of its own name: `logging.getLogger(__name__)`.

RAMMER_DEBUG and RAMMER_TRACE_PLUGINS add a handler that shows messages on stderr; nothing else prints them. What a user
should fix (a damaged cache, an unknown flag) is a Python warning, so filters and `-W error` apply.
"""

from __future__ import annotations

import logging
import sys
from threading import Lock

from rammer import config

DEVICES, TIMES, CHOICES, SOURCE, SLOTS = 21, logging.INFO, logging.DEBUG, 9, 8  # levels of RAMMER_DEBUG=1 to 5
_LEVELS = (logging.WARNING, DEVICES, TIMES, CHOICES, SOURCE, SLOTS)

ROOT = logging.getLogger("rammer")
TRACED = "rammer.plugins"  # the logger of hook calls


class _Stderr(logging.Handler):
    """A handler for messages from `level` on, and for traced hook calls. Writes to the current `sys.stderr`."""

    shown = logging.WARNING
    traces = False

    def emit(self, record: logging.LogRecord) -> None:
        wanted = self.traces if record.name == TRACED else record.levelno >= self.shown
        if wanted or record.levelno >= logging.WARNING:
            print(f"rammer: {record.getMessage()}", file=sys.stderr)


_stderr = _Stderr()
_lock = Lock()
_usual = logging.NOTSET  # the level that the logger had before the handler was added


def listen() -> None:
    """Add the handler if RAMMER_DEBUG or RAMMER_TRACE_PLUGINS is set now, else remove it."""
    global _usual
    detail, traces = config.integer("RAMMER_DEBUG") or 0, bool(config.boolean("RAMMER_TRACE_PLUGINS"))
    with _lock:
        _stderr.shown, _stderr.traces = _LEVELS[min(detail, 5)], traces
        if not (detail or traces):
            if _stderr in ROOT.handlers:
                ROOT.removeHandler(_stderr)
                ROOT.setLevel(_usual)
            return
        if _stderr not in ROOT.handlers:
            _usual = ROOT.level
            ROOT.addHandler(_stderr)
        ROOT.setLevel(min(_stderr.shown, logging.DEBUG) if traces else _stderr.shown)
