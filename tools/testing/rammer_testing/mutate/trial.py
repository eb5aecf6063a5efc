"""Compile and run a network with a bug, in a separate process, and report what stopped the bug."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import rammer
from rammer import config
from rammer.errors import RammerError, VerificationError
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer_testing.mutate.bug import NONE, Bug, Hits, plant
from rammer_testing.mutate.networks import NETWORKS, Network

TARGETS: dict[str, dict[str, Any]] = {
    "cpu": {"target": "cpu", "device": 2},
    "amx": {"target": "cpu", "arch": "x86-64-amx@here", "device": 2},  # emulated where the machine has none
    "cuda": {"target": "cuda", "device": "emulator"},
    "ipu": {"target": "ipu", "device": "emulator", "arch": "gc200:64"},
}
# Networks that exercise the special parts of a target; compiling for all but the first takes long.
USUAL: dict[str, tuple[str, ...]] = {
    "cpu": tuple(NETWORKS),
    "amx": ("products", "quantized"),
    "cuda": ("lstm", "convolutional", "attention", "quantized"),
    "ipu": ("gru", "convolutional", "attention"),
}
UNREACHED, HARMLESS, SILENT, CRASHED, HUNG = "not reached", "harmless", "SILENT", "CRASHED", "HUNG"
RUNS = 3  # a missing wait does not fail each time
PATIENCE_S = 120.0
MORE = 8.0  # times the error of the sound program, and
LEAST = 2e-6  # this much more: errors above are wrong
UNSHOWN = re.compile("not proven|tried out|not verified")  # notes on parts without a proof
STOPPED = re.compile(r"\b(R\d{3})\b|(tried out)|(one run)")


@dataclass(frozen=True)
class Reference:
    """Expected outputs of a network on a target, and the errors of the sound program."""

    network: Network
    outputs: Mapping[str, Array]
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """The fate of a bug: an id of a rule, `trial`, the class of another error, or one of the words above."""

    what: str
    detail: str = ""

    @property
    def wrong(self) -> bool:
        """Return whether the user gets wrong numbers, or no answer."""
        return self.what in (SILENT, CRASHED, HUNG)


def reference(network: Network, target: str, cache: Path) -> Reference:
    """Evaluate a network, and run the sound program. Raises RammerError."""
    graph = rammer.from_onnx(network.model)
    wanted = evaluate_graph(graph, network.inputs)
    with config.override(RAMMER_CACHE_DIR=str(cache)):
        found = _run(network, target)[0]
    wanted = {t: wanted[t] for t in found}  # a state stays in the program
    return Reference(network, wanted, {t: _error(found[t], v) for t, v in wanted.items()})


def attempt(bug: Bug, made: Reference, target: str, cache: Path) -> Outcome:
    """Inject a bug and compile. `cache` holds the machine code of sound programs, but no verdicts."""
    hits = Hits()
    with tempfile.TemporaryDirectory(prefix="rammer-mutate-") as folder:
        shutil.copytree(cache, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("profiles*", "*.sqlite*"))
        context = multiprocessing.get_context("fork")
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_live, args=(bug, made, target, folder, hits, send))
        process.start()
        send.close()
        try:
            outcome = receive.recv() if receive.poll(PATIENCE_S) else Outcome(HUNG)
        except EOFError:
            process.join()
            outcome = Outcome(CRASHED, signal.Signals(-(process.exitcode or 0)).name if process.exitcode else "")
        process.kill()
        process.join()
    return outcome if hits or bug is NONE else Outcome(UNREACHED, outcome.detail)


def _live(bug: Bug, made: Reference, target: str, folder: str, hits: Hits, send: Connection) -> None:
    """Run the child: plant, compile, run, compare, report."""
    os.setsid()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.environ["RAMMER_CACHE_DIR"] = folder
    os.environ["RAMMER_WATCHDOG_SECONDS"] = "5"
    plant(bug, hits)
    send.send(_judged(made, target))
    os._exit(0)


def _judged(made: Reference, target: str) -> Outcome:
    try:
        found, notes = _runs(made.network, target)
    except VerificationError as error:
        return Outcome(error.rule, error.what)
    except RammerError as error:
        return Outcome(_stopped(error.what) or type(error).__name__, error.what)
    except Exception as error:  # a bug may break what follows it: loud, and named in the table
        return Outcome(type(error).__name__, str(error)[:300])
    for outputs in found:
        for tensor, wanted in made.outputs.items():
            error_now = _error(outputs[tensor], wanted)
            usual = made.errors[tensor]
            if not error_now <= MORE * usual + LEAST:
                return Outcome(SILENT, f"{tensor} is off by {error_now:.2g}, the sound program by {usual:.2g}")
    dropped = [note for note in notes if "no candidate" in note]
    if not dropped:
        return Outcome(HARMLESS, "; ".join(note for note in notes if UNSHOWN.search(note)))
    return Outcome(f"{_stopped(dropped[0]) or 'dropped'}, another kernel", "; ".join(dropped[:2]))


def _stopped(text: str) -> str:
    """Return the rule, or the trial, that a message names first."""
    if (found := STOPPED.search(text)) is None:
        return ""
    return found[1] or ("trial" if found[2] else "one run")


def _run(network: Network, target: str) -> list[dict[str, Array]]:
    return _runs(network, target)[0]


def _runs(network: Network, target: str) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """Return the outputs of some runs from the same state, and the plan's notes."""
    with rammer.compile(network.model, **TARGETS[target], tune_seconds=0, state=network.state or None) as program:
        assert program.plan is not None
        names = [port.name for port in program.outputs]
        found = []
        for _ in range(RUNS):
            values = program.stream().run(names, dict(network.inputs))  # a stream has a state of its own
            found.append(dict(zip(names, values, strict=True)))
        return found, program.plan.notes


def _error(found: Array, wanted: Array) -> float:
    """Return the largest difference over the largest value."""
    a, b = (np.asarray(v, np.float64) for v in (found, wanted))
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-30))
