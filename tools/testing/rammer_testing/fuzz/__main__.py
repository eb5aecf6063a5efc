"""The command line: run cases for some time, print what failed with its smallest form, and a table of all."""

from __future__ import annotations

import argparse
import itertools
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

import onnx

from rammer import config
from rammer.errors import RammerError, did_you_mean
from rammer.plugins import PluginRegistry
from rammer_testing.fuzz.case import Case, Choices, draw
from rammer_testing.fuzz.families import FAMILIES
from rammer_testing.fuzz.oracle import warm
from rammer_testing.fuzz.shrink import shrink
from rammer_testing.fuzz.summary import Summary
from rammer_testing.fuzz.trial import Verdict
from rammer_testing.fuzz.worker import Limits, Pool, names

SECONDS = 60.0  # of a run without limits on the command line
PROGRESS_S = 60.0
SHRINK_S = 120.0  # per kind of fault
SHOWN = 1500  # characters of a fault's detail


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("python -m rammer.testing.fuzz", description=__doc__)
    found.add_argument("cases", nargs="*", metavar="family:seed", help="run these cases and no others")
    found.add_argument("--seconds", type=float, help="begin no case after this long (default: 60, or --count cases)")
    found.add_argument("--count", type=int, help="how many cases to run at most")
    found.add_argument("--seed", type=int, default=0, help="of the first case of each family (default: 0)")
    found.add_argument("--family", action="append", metavar="NAME", help=f"may be repeated: {', '.join(FAMILIES)}")
    found.add_argument("--target", default="cpu", help="the vDevice (default: cpu)")
    found.add_argument("--policy", action="append", metavar="NAME", help="with options or without; by default all")
    found.add_argument("--arch", action="append", metavar="NAME", help="may be repeated; all that run here by default")
    found.add_argument("--device", action="append", metavar="NAME", help="what devices to open; 1 to 8 vEUs by default")
    found.add_argument("--jobs", type=int, default=1, help="child processes at once (default: 1)")
    found.add_argument("--limit", type=float, default=3.0, help="seconds of CPU time for compiling (default: 3)")
    found.add_argument("--no-shrink", action="store_true", help="do not look for the smallest form of a fault")
    found.add_argument("--table", type=Path, metavar="FILE", help="write the table there, too, while cases run")
    found.add_argument(
        "--every", type=int, default=200, metavar="N", help="write it after every N cases (default: 200)"
    )
    found.add_argument("--save", type=Path, metavar="DIR", help="write the smallest models there")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer; return 1 if a case failed."""
    given = parser().parse_args(arguments)
    try:
        if config.get("RAMMER_CACHE_DIR"):
            return _run(given)
        with tempfile.TemporaryDirectory(prefix="rammer-fuzz-") as folder, config.override(RAMMER_CACHE_DIR=folder):
            return _run(given)
    except RammerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    choices, families = _choices(given), given.family or list(FAMILIES)
    for family in (*families, *(case.partition(":")[0] for case in given.cases)):
        if family not in FAMILIES:
            raise RammerError(f"no family {family!r}", hint=did_you_mean(family, FAMILIES) or ", ".join(FAMILIES))
    limits = Limits(given.limit, 40.0 * given.limit)
    pool = Pool(choices, limits, given.jobs)
    source = given.cases or itertools.islice(names(families, given.seed), given.count)
    run = _Run(given.table, given.every)
    seconds = given.seconds if given.seconds is not None else inf if given.cases or given.count else SECONDS
    faults: dict[str, Verdict] = {}
    try:
        for name, verdict in pool.run(source, run.begun + seconds):
            if run.add(name, verdict) and verdict.failed:
                faults[name] = verdict
            if verdict.failed or given.cases:
                print(f"{name}: {verdict.outcome}: {verdict.reason}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    run.write()
    for note in pool.notes:
        print(note)
    try:
        for name, verdict in faults.items():
            _report(name, draw(name, choices), verdict, limits, given)
    except KeyboardInterrupt:
        print("interrupted while looking for the smallest form")
    print(f"\n{run}")
    return int(run.summary.failed)


class _Run:
    """Counts of a run. A file holds them too, in case the run is cut off."""

    def __init__(self, table: Path | None, every: int) -> None:
        self.summary, self.begun = Summary(), time.monotonic()
        self._table, self._every, self._shown = table, max(every, 1), self.begun

    def add(self, name: str, verdict: Verdict) -> bool:
        """Count a verdict; return whether it is the first of its kind."""
        new = self.summary.add(name, verdict)
        if self.summary.cases % self._every == 0:
            self.write()
        if time.monotonic() > self._shown + PROGRESS_S:
            self._shown = time.monotonic()
            print(f"{self.summary.cases} cases in {self._shown - self.begun:.0f} s", flush=True)
        return new

    def write(self) -> None:
        """Replace the table's file atomically."""
        if self._table:
            new = self._table.with_name(f".{self._table.name}.new")
            new.write_text(f"{self}\n")
            new.replace(self._table)

    def __str__(self) -> str:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(u.ru_utime + u.ru_stime for u in used) / max(self.summary.cases, 1)
        took = time.monotonic() - self.begun
        return f"{self.summary}\n\n{self.summary.cases} cases in {took:.0f} s, {cpu:.2f} s of CPU time each"


def _choices(given: argparse.Namespace) -> Choices:
    """Return the options to draw from: named by the user, or all available. Load what children inherit."""
    registry = PluginRegistry()
    policies = tuple(given.policy or sorted(registry.policies()))
    for policy in policies:
        registry.policy(policy)
    known = registry.vdevices()
    archs = tuple(given.arch or (known[given.target][1].archs() if given.target in known else ()) or (None,))
    devices = {"veus": tuple(given.device)} if given.device else {}
    for arch in archs:
        vdevice = registry.open(given.target, arch=arch, device=(given.device or [None])[0])
        vdevice.prepare([])
        vdevice.close()
    warm()
    return Choices(given.target, policies, archs, precisions=tuple(vdevice.spec.precisions), **devices)


def _report(name: str, case: Case, verdict: Verdict, limits: Limits, given: argparse.Namespace) -> None:
    """Print a fault, in its smallest form unless the user disabled that."""
    print(f"\n=== {name}: {verdict.outcome}: {verdict.reason}")
    if not given.no_shrink:
        case, verdict = shrink(case, verdict, limits, SHRINK_S)
    print(f"{case.options}\n{case.text()}\n{verdict.detail[:SHOWN]}", flush=True)
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        onnx.save(case.model, given.save / f"{name.replace(':', '-')}.onnx")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # print the table even if started in the background
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
