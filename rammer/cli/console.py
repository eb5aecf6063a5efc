"""What commands print to, and how they end: errors as text, signals, progress."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rammer.errors import RammerError
from rammer.vdevice.base import Progress as ProgressCallback

out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)

INTERRUPTED = 130  # the shell's status for a command that Ctrl-C ended


class Group(click.Group):
    """Prints warnings as lines, and a RammerError as text with its hint, and exits with 1; -vv shows the traceback."""

    def main(self, *args: Any, **extra: Any) -> Any:
        with _cleaning_up():
            return super().main(*args, **extra)

    def invoke(self, context: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(context)
        except KeyboardInterrupt:
            if context.params.get("verbose", 0) > 1:
                raise
            err.print("interrupted")
            context.exit(INTERRUPTED)
        except RammerError as error:
            if context.params.get("verbose", 0) > 1:
                raise
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
            for note in getattr(error, "__notes__", ()):
                err.print(f"  {escape(note)}", style="dim")
            context.exit(1)


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does: what it has started ends with it."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    chosen = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, leave) for number in chosen if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False)


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """A progress callback that draws on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show
