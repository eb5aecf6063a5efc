"""Log the steps of one compile, and write the files of RAMMER_DUMP_DIR. Levels of RAMMER_DEBUG: docs/flags.md."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from rammer import config, log
from rammer.errors import RammerError
from rammer.ir.graph import Graph
from rammer.ir.plan import ExecutionPlan
from rammer.ir.text import print_plan
from rammer.scheduler.timeline import Timeline

logger = logging.getLogger(__name__)


class Trace:
    """Debugging output of one compile: messages of this module's logger, and files in the dump folder.

    Files are named `<number>-<model>.<what>.txt`.
    """

    def __init__(self) -> None:
        log.listen()
        self._folder = config.get("RAMMER_DUMP_DIR")
        self._stem: Path | None = None

    def say(self, level: int, text: str) -> None:
        """Log a text at a level of `rammer.log`, such as DEVICES."""
        logger.log(level, "%s", text)

    def logger_at(self, level: int) -> Callable[[str], None] | None:
        """Return a function that logs texts of a level, or None if no handler shows them.

        With None, callers need not build the texts.
        """
        return partial(self.say, level) if logger.isEnabledFor(level) else None

    def warn(self, text: str) -> None:
        """Log a warning, which shows on stderr unless the logger is silenced."""
        logger.warning("%s", text)

    def graph(self, what: str, graph: Graph) -> None:
        """Write a graph as text to the dump folder. Raises RammerError if the folder is not writable."""
        if self._folder:
            self._write(graph.name, what, print_graph(graph))

    def plan(self, plan: ExecutionPlan, timeline: Timeline) -> None:
        """Log the slots, and write plan and timeline as text. Raises RammerError as `graph` does."""
        if say := self.logger_at(log.SLOTS):
            say(f"the slots of every vEU\n{print_plan(plan)}")
        if self._folder:
            self._write(plan.graph.name, "plan", print_plan(plan) + "".join(f"# {note}\n" for note in plan.notes))
            import rammer_viz as viz  # imported only for drawings

            self._write(plan.graph.name, "timeline", viz.text_gantt(timeline, plan, width=160))

    def _write(self, model: str, what: str, text: str) -> None:
        try:
            if self._stem is None:
                self._stem = _claim(Path(self._folder), re.sub(r"[^\w.-]+", "_", model)[:60] or "model")
            Path(f"{self._stem}.{what}.txt").write_text(text, encoding="utf-8")
        except OSError as error:
            raise RammerError(f"cannot write to RAMMER_DUMP_DIR={self._folder!r}: {error.strerror}") from error


def _claim(folder: Path, model: str) -> Path:
    """Create and return the first numbered file name that no other compile has, even one that runs at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        stem = folder / f"{number:03d}-{model}"
        try:
            os.close(os.open(f"{stem}.graph.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return stem
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


def print_graph(graph: Graph) -> str:
    """Return a graph as text, a line per input, constant, operator, view and output; for people and for diff."""
    lines = [f"graph {graph.name!r}"]
    lines += [f"input {t!r}: {graph.types[t]}" for t in graph.inputs]
    lines += [f"constant {t!r}: {graph.types[t]}" for t in graph.constants]
    for n, op in enumerate(graph.operators):
        attrs = ", ".join(f"{name}={_short(value)}" for name, value in op.operation.attrs)
        results = ", ".join(f"{t!r}: {graph.types[t]}" for t in op.outputs)
        lines.append(f"{n} {op.kind}({', '.join(map(repr, op.inputs))}) [{attrs}] -> {results}  # {op.name!r}")
    lines += [f"view {t!r} = {view.base!r} from element {view.offset}" for t, view in sorted(graph.views.items())]
    lines += [f"output {t!r}: {graph.types[t]}" for t in graph.outputs]
    return "".join(f"{line}\n" for line in lines)


def _short(value: object) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 200 else f"{text[:200]}…"
