"""What earlier runs found out about peers: the fastest of a peer's equivalent forms, and who did not load in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare.peers import PEERS, Task
from benchmarks.compare.worker import Visit, Worker
from benchmarks.models.store import CACHE, stored
from rammer.errors import RammerError

KNOWN = CACHE / "forms.json"
ROUNDS = 4
RUNS, SECONDS = 50, 0.4


def choose(task: Task, timeout_s: float, say: Callable[[str], None], again: bool, priority: int = 0) -> Task:
    """`task` in its peer's fastest form, measured unless it is known. Raises RammerError if it did not load in time.

    `again` forgets what is known. `priority`: of timed runs.
    """
    known = {} if again else _known().get(_key(task), {})
    if known.get("patience_s", 0) >= timeout_s:
        raise RammerError(f"not tried again: no answer within {known['patience_s']:.0f} s in an earlier run")
    if "form" in known:
        return replace(task, form=known["form"])
    forms = PEERS[task.peer].forms(stored(Path(task.path)))
    visit = Visit(RUNS, SECONDS, priority)
    times = _measure([replace(task, form=form) for form in forms], timeout_s, visit, say) if len(forms) > 1 else {}
    best = min(times, key=lambda form: times[form], default=forms[0])  # if all fail, the first one says why
    _keep(task, {"form": best, "ms": times})
    return replace(task, form=best)


def remember_timeout(task: Task, timeout_s: float) -> None:
    """Do not wait for this peer again, unless for longer."""
    _keep(task, {"patience_s": timeout_s})


def _key(task: Task) -> str:
    return f"{Path(task.path).stem} {task.peer} {PEERS[task.peer].version()} {task.threads} threads"


def _known() -> dict[str, dict[str, Any]]:
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}


def _keep(task: Task, found: dict[str, Any]) -> None:
    KNOWN.parent.mkdir(parents=True, exist_ok=True)
    KNOWN.write_text(json.dumps({**_known(), _key(task): found}, indent=1))


def _measure(tasks: list[Task], timeout_s: float, visit: Visit, say: Callable[[str], None]) -> dict[str, float]:
    """Least milliseconds of the forms that work, visited in turns."""
    workers: dict[str, Worker] = {}
    times: dict[str, float] = {}
    try:
        for task in tasks:
            say(f"{task.peer}, {task.form}")
            workers[task.form] = Worker(task)
            _works(workers, task.form, lambda worker: worker.loaded(timeout_s))
        for _ in range(ROUNDS):
            for form in list(workers):
                least = times.setdefault(form, float("inf"))
                answer = _works(workers, form, lambda worker: worker.visit(visit, timeout_s))
                times[form] = min([least, *answer])
    finally:
        for worker in workers.values():
            worker.stop()
    return {form: ms for form, ms in times.items() if form in workers}


def _works(workers: dict[str, Worker], form: str, ask: Callable[[Worker], Any]) -> Any:
    """The answer, or nothing from a form that fails and is dropped: another one may work."""
    try:
        return ask(workers[form])
    except RammerError:
        workers.pop(form).stop()
        return ()
