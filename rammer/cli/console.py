"""Print for commands and end them: errors as text, JSON, signals."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rammer.cli.syntax import in_options
from rammer.errors import RammerError, message, size


class Plain(Console):
    """A console that prints no control characters but its own: names come from models, which are untrusted.

    On a narrow terminal a table becomes a block of lines for each row.
    """

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        wide = self.options.update(max_width=WIDE)
        if isinstance(renderable, Table) and self.measure(renderable, options=wide).minimum > self.width:
            rows = zip(*(column.cells for column in renderable.columns), strict=True)
            heads = [column.header for column in renderable.columns]
            blocks = ("\n".join(f"{h} {c}".strip() for h, c in zip(heads, row, strict=True) if c) for row in rows)
            renderable = Text.from_markup("\n\n".join(blocks))
        for part in super().render(renderable, options):
            yield part if part.control else Segment(message(part.text), part.style)


WIDE = 10_000  # columns of a pipe or a file, whose readers break lines themselves
out = Plain(width=None if sys.stdout.isatty() else WIDE)
err = Plain(stderr=True, width=None if sys.stderr.isatty() else WIDE)

INTERRUPTED = 130  # the shell's status for a command that Ctrl-C ended
AGAIN_S = 0.01  # seconds until a lost signal is sent again


class CommandGroup(click.Group):
    """A command group that prints warnings as lines. It prints RammerErrors, and faults of stdout, and exits with 1.

    -vv shows tracebacks.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        with _cleaning_up():
            return super().main(*args, **extra)

    def invoke(self, context: click.Context) -> Any:
        try:
            with warnings.catch_warnings(), _signals_as_raised():
                warnings.showwarning = _show_warning
                return super().invoke(context)
        except (KeyboardInterrupt, RammerError, OSError) as error:
            if context.params.get("verbose", 0) > 1 or isinstance(error, BrokenPipeError):
                raise
            if isinstance(error, KeyboardInterrupt):
                err.print("interrupted")
                context.exit(INTERRUPTED)
            err.print(f"[bold red]error:[/] {escape(in_options(str(error)))}", highlight=False, soft_wrap=True)
            for note in getattr(error, "__notes__", ()):
                err.print(f"  {escape(note)}", style="dim", soft_wrap=True)
            if isinstance(error, OSError):
                try:
                    sys.stdout.flush()
                except OSError:  # it is stdout's: at the exit, Python would fail to write the rest, too
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(1)


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """End the command on SIGTERM and SIGHUP as on Ctrl-C, so that child processes end with it.

    Python drops an exception that a signal handler raises inside a destructor or a weak reference's callback, which
    happen during imports. Then the signal is sent again.
    """

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    def dropped(what: sys.UnraisableHookArgs) -> None:
        number = _signal_of(what.exc_value)
        if number is None:
            hook(what)
        else:  # not in this hook, which would drop it as well
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()

    chosen = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, leave) for number in chosen if signal.getsignal(number) is signal.SIG_DFL}
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_as_raised() -> Iterator[None]:
    """Raise the signal's own exception where Python replaces it by another error, as in `__set_name__`."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and _signal_of(cause) is None:
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from None
        raise


def _signal_of(error: BaseException | None) -> int | None:
    """Return the number of the signal whose handler raised the error, else None."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = error.code if isinstance(error, SystemExit) else None
    return code - 128 if isinstance(code, int) and code > 128 else None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def print_json(data: object) -> None:
    """Print what a command has found as JSON, on stdout."""
    click.echo(json.dumps(data, indent=1, default=str))


def wrote(path: str) -> None:
    """Say on stderr which file was written, so that stdout has results alone."""
    err.print(f"wrote {escape(path)} ({size(Path(path).stat().st_size)})", highlight=False, soft_wrap=True)
