"""Show messages of `logging`. Each module logs to the logger of its own name: `logging.getLogger(__name__)`.

RAMMER_DEBUG and RAMMER_TRACE_PLUGINS add a handler that shows messages on stderr; nothing else prints them. What a user
should fix (a damaged cache, an unknown flag) is a Python warning, so filters and `-W error` apply.
"""

from __future__ import annotations

import logging
import sys
from threading import Lock

from rammer import config

DEVICES, TIMES, CHOICES, SOURCE, SLOTS = range(1, 6)  # details, numbered as in RAMMER_DEBUG
_LEVELS = {DEVICES: logging.INFO, TIMES: logging.INFO, CHOICES: logging.DEBUG, SOURCE: 9, SLOTS: 8}

ROOT = logging.getLogger("rammer")
TRACED = "rammer.plugins"  # the logger of hook calls


class _Stderr(logging.Handler):
    """A handler for warnings, messages up to a detail, and traced hook calls. Writes to the current `sys.stderr`."""

    detail = 0
    traces = False

    def emit(self, record: logging.LogRecord) -> None:
        wanted = self.traces if record.name == TRACED else getattr(record, "detail", SLOTS) <= self.detail
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
        _stderr.detail, _stderr.traces = detail, traces
        if (detail or traces) and _stderr not in ROOT.handlers:
            _usual = ROOT.level
            ROOT.addHandler(_stderr)
        if not (detail or traces):
            if _stderr in ROOT.handlers:
                ROOT.removeHandler(_stderr)
                ROOT.setLevel(_usual)
            return
        ROOT.setLevel(_LEVELS[min(detail, SLOTS)] if detail else logging.DEBUG)


def say(logger: logging.Logger, detail: int, text: str) -> None:
    """Log a text of a detail: DEVICES and TIMES at level INFO, others at DEBUG or below."""
    logger.log(_LEVELS[detail], "%s", text, extra={"detail": detail})


def hears(logger: logging.Logger, detail: int) -> bool:
    """Return whether a handler may show such a text; if not, callers need not build it."""
    return logger.isEnabledFor(_LEVELS[detail])
