"""Run batches of cases in forked children of a preloaded parent, so that crashes and hangs end only the child."""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from rammer.errors import RammerError
from rammer_testing.fuzz.case import Choices, draw
from rammer_testing.fuzz.trial import CRASHED, HUNG, INTERNAL, Trial, Verdict, internal

Say = Callable[[dict[str, Any]], None]
SILENCE = "no sign of life"
FROM_OUTSIDE = (SILENCE, "SIGKILL")  # endings that an overloaded machine may cause
LOOK_S, MOST_SILENCE_S = 1.0, 2.0  # between checks of children, and how much of that counts as silence
CASE_SHARE = 10  # CPU time of a case beside compiling, as a multiple of a compiler call's
MEMORY = 16 << 30  # bytes of address space of a child
_FORK = multiprocessing.get_context("fork")  # a child inherits the modules that its parent has loaded


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of CPU time for one compiler call, and of wall clock without a message."""

    cpu_s: float = 3.0
    silence_s: float = 120.0


class Child:
    """A forked process that works and reports its progress."""

    def __init__(self, work: Callable[[Say], None], limits: Limits) -> None:
        self._limits = limits
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_live, args=(work, theirs.send, self._log.fileno()))
        self._process.start()
        theirs.close()
        self._looked, self._silence_s = time.monotonic(), 0.0

    def hear(self) -> dict[str, Any]:
        """Return its next message. Raises EOFError when it has ended."""
        try:
            message: dict[str, Any] = self.pipe.recv()
        except OSError as error:  # it ended while it sent
            raise EOFError from error
        self._looked, self._silence_s = time.monotonic(), 0.0
        return message

    def has_hung(self) -> bool:
        """Return whether it has been silent for too long.

        A long gap between two calls counts little: this process paused.
        """
        now = time.monotonic()
        self._silence_s += min(now - self._looked, MOST_SILENCE_S)
        self._looked = now
        return self._hung

    @property
    def _hung(self) -> bool:
        return self._silence_s > self._limits.silence_s

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        """Kill it if it still runs. Return how it ended; "" if it ended well."""
        self.pipe.close()
        if hung := self._hung:
            self.kill()
        self._process.join()
        code = self._process.exitcode or 0
        self._log.seek(0)
        last = self._log.read()[-300:].decode(errors="replace").strip().splitlines()[-1:]
        self._log.close()
        if hung:
            return SILENCE
        if code == 0:
            return ""
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return ": ".join((how, *last))


def _live(work: Callable[[Say], None], say: Say, log: int) -> None:
    """Run a child. All its output goes to the log."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.disable()  # the parent's, if any, writes to the parent's output
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    work(say)


def allow_cpu(seconds: float) -> None:
    """Limit the CPU time of this process and its children to `seconds` from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (total, resource.RLIM_INFINITY))


def try_all(trials: Iterable[tuple[str, Callable[[], Trial]]], limits: Limits, say: Say) -> None:
    """Plan all cases, compile their rKernels together, then check each; send a verdict for each."""
    planned: list[tuple[str, Trial]] = []
    for name, make in trials:
        allow_cpu(CASE_SHARE * limits.cpu_s)
        say({"begin": name})
        try:
            trial = make()
        except Exception as error:  # a fault of the generators, reported as such
            verdict: Verdict | None = Verdict(INTERNAL, f"drawing the case: {error!r}", traceback.format_exc()[-2000:])
        else:
            verdict = trial.plan()
        if verdict:
            say({"end": name, **verdict.to_json()})
        else:
            planned.append((name, trial))
    for name, trial, failed in _compiled(planned, limits, say):
        allow_cpu(CASE_SHARE * limits.cpu_s)
        say({"begin": name})
        say({"end": name, **(failed or trial.check()).to_json()})


def _compiled(
    planned: Sequence[tuple[str, Trial]], limits: Limits, say: Say
) -> Iterator[tuple[str, Trial, Verdict | None]]:
    """Yield the trials after compiling their rKernels together, per arch.

    A trial has a verdict if its own rKernels cannot be compiled.
    """
    by_arch: dict[str, list[tuple[str, Trial]]] = {}
    for name, trial in planned:
        assert trial.device is not None
        by_arch.setdefault(trial.device.spec.arch, []).append((name, trial))
    for group in by_arch.values():
        say({"begin": ""})
        together = _compile([trial for _, trial in group], limits)
        for name, trial in group:
            say({"begin": name})
            yield name, trial, _compile([trial], limits) if together else None


def _compile(trials: Sequence[Trial], limits: Limits) -> Verdict | None:
    """Compile into the cache, in a process whose CPU limit compilers inherit. Returns a Verdict if that fails."""

    def work(say: Say) -> None:
        allow_cpu(limits.cpu_s)
        device = trials[0].device
        assert device is not None
        try:
            device.prepare([kernel for trial in trials for kernel in trial.kernels])
        except RammerError as error:
            say(internal(error).to_json())

    messages, how = _heard(Child(work, limits))
    return Verdict(**messages[-1]) if messages else _died(how) if how else None


@dataclass
class Pool:
    """A runner of named cases: `jobs` children at once, `batch` cases in each."""

    choices: Choices
    limits: Limits = field(default_factory=Limits)
    jobs: int = 1
    batch: int = 48
    notes: list[str] = field(default_factory=list)  # on cases that end alone, but did not in a batch

    def run(self, names: Iterable[str], until: float) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts as they arrive; start no batch after `until` (of time.monotonic)."""
        source = iter(names)
        waiting: list[list[str]] = []
        suspects: dict[str, str] = {}  # how their batch died
        children: dict[Connection, _Batch] = {}
        try:
            while True:
                while len(children) < self.jobs:
                    todo = waiting.pop() if waiting else []
                    if not todo and time.monotonic() < until:
                        todo = list(itertools.islice(source, self.batch))
                    if not todo:
                        break
                    batch = _Batch(todo, self.choices, self.limits)
                    children[batch.child.pipe] = batch
                if not children:
                    return
                ready = wait(list(children), LOOK_S)
                for pipe, batch in list(children.items()):
                    if pipe not in ready and not batch.child.has_hung():
                        continue
                    try:
                        if pipe not in ready:
                            raise EOFError
                        for name, verdict in batch.note(batch.child.hear()):
                            yield name, self._confirmed(name, verdict, suspects.get(name, ""))
                    except EOFError:
                        del children[pipe]
                        how, left = batch.finish()
                        if left and len(batch.names) == 1:
                            yield left[0], _died(how)
                        elif left and batch.current:
                            suspects[batch.current] = how
                            others = [name for name in left if name != batch.current]
                            waiting += [[batch.current], *([others] if others else [])]
                        else:
                            waiting += [[name] for name in left]
        finally:
            for batch in children.values():
                batch.child.kill()
                batch.child.end()

    def _confirmed(self, name: str, verdict: Verdict, how: str) -> Verdict:
        """Return the verdict on a case alone after its batch died (`how`): a crash in the batch is a fault too."""
        if not how or verdict.failed:
            return verdict
        if how.startswith(FROM_OUTSIDE):
            self.notes.append(f"{name}: {verdict.outcome} alone; in a batch {how}")
            return verdict
        return Verdict(CRASHED, "in a batch, not alone", how)


class _Batch:
    """Cases in one child, and those that it has reported."""

    def __init__(self, names: Sequence[str], choices: Choices, limits: Limits) -> None:
        self.names, self.done, self.current = list(names), set[str](), ""

        def work(say: Say) -> None:
            def make(name: str) -> Callable[[], Trial]:
                return lambda: Trial(draw(name, choices))

            try_all([(name, make(name)) for name in names], limits, say)

        self.child = Child(work, limits)

    def note(self, message: dict[str, Any]) -> Iterator[tuple[str, Verdict]]:
        if "begin" in message:
            self.current = message["begin"]
        else:
            name = message.pop("end")
            self.done.add(name)
            yield name, Verdict(**message)

    def finish(self) -> tuple[str, list[str]]:
        """Return how the ended child ended, and the cases that it did not finish."""
        how = self.child.end()
        return how, [name for name in self.names if name not in self.done]


def _died(how: str) -> Verdict:
    hung = how.startswith(SILENCE)
    return Verdict(HUNG if hung else CRASHED, how.partition(":")[0], how)


def _heard(child: Child) -> tuple[list[dict[str, Any]], str]:
    """Return all messages of a child, and how it ended."""
    messages: list[dict[str, Any]] = []
    try:
        while not child.has_hung():
            if child.pipe.poll(LOOK_S):
                messages.append(child.hear())
    except EOFError:
        pass
    return messages, child.end()


def run_separately(trials: Mapping[str, Callable[[], Trial]], limits: Limits) -> dict[str, Verdict]:
    """Return verdicts on cases, all in one child. If it dies, the unfinished cases count as dead too."""
    messages, how = _heard(Child(lambda say: try_all(trials.items(), limits, say), limits))
    found = {message.pop("end"): Verdict(**message) for message in messages if "end" in message}
    return {name: found.get(name) or _died(how) for name in trials}


def alone(trial: Callable[[], Trial], limits: Limits) -> Verdict:
    """Return the verdict on one case in its own child."""
    return run_separately({"": trial}, limits)[""]


def names(families: Sequence[str], seed: int) -> Iterator[str]:
    """Yield family:seed without end, the families in turn."""
    while True:
        for family in families:
            yield f"{family}:{seed}"
        seed += 1
