"""Measured rTask times on disk, so that no rKernel is measured twice on one device with one toolchain."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rammer import config, files
from rammer.errors import RammerError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask

Answer = TypeVar("Answer")

WAIT_S = 30.0  # how long to wait for another process that is writing
_FORM = 1  # of the table; a file of another form is moved aside
_BATCH = 500  # keys per query; SQLite allows 999 and more
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_VERDICTS = """
CREATE TABLE IF NOT EXISTS verdict (
    device TEXT NOT NULL, toolchain TEXT NOT NULL, kernel TEXT NOT NULL, wrong TEXT NOT NULL, stored_at REAL NOT NULL,
    PRIMARY KEY (device, toolchain, kernel)
) WITHOUT ROWID
"""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rtask (
    device TEXT NOT NULL, toolchain TEXT NOT NULL, kernel TEXT NOT NULL, us REAL NOT NULL, stored_at REAL NOT NULL,
    PRIMARY KEY (device, toolchain, kernel)
) WITHOUT ROWID
"""


def kernel_key(kernel: RKernel, text: str) -> str:
    """What a time depends on beside device and toolchain: its text, and the memory it walks through."""
    sizes = (t.nbytes for t in kernel.argument_types())
    parts = (text, str(kernel.num_rtasks), *map(str, sizes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def generators() -> str:
    """A fingerprint of the code that turns an operation and a schedule into text."""
    package = Path(__file__).parents[1]
    files = sorted(f for folder in ("ir", "kernels", "vdevice") for f in (package / folder).rglob("*.py"))
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()


def recipe_keys(kernels: Sequence[RKernel], spec: VDeviceSpec) -> dict[RKernel, str]:
    """Keys that stand for the texts of kernels and need no printing of them: what the texts are made from.

    An operation, a schedule, a spec and the generators' own code decide a text. Kernels with foreign texts have none.
    """
    common = f"{generators()}\0{spec}"
    operations: dict[Operation, str] = {}
    found = {}
    for k in kernels:
        if isinstance(k.body, ForeignSource):
            continue
        if k.operation not in operations:
            operations[k.operation] = f"{k.operation.expr}\0{k.operation.static}"
        parts = (common, operations[k.operation], k.name, k.schedule, str(k.packing))
        found[k] = "recipe " + hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return found


def comparison_keys(plans: Sequence[ExecutionPlan]) -> list[str] | None:
    """What the times of plans, measured side by side, depend on: a key each. None if a kernel's text is foreign.

    Times of another comparison do not count: the machine may have been slower then.
    """
    digests = [_digest(plan) for plan in plans]
    if any(digest is None for digest in digests):
        return None
    together = hashlib.sha256(" ".join(map(str, digests)).encode()).hexdigest()
    return [f"plan {n} of {together}" for n in range(len(plans))]


def _digest(plan: ExecutionPlan) -> str | None:
    """What a plan's time depends on: rKernels, operands, placement and order.

    Barriers follow from these, but for some that a plan has more once a proof finds wider reads: that is no other plan.
    """
    recipes = recipe_keys(list(dict.fromkeys(plan.kernels)), plan.spec)
    if any(k not in recipes for k in plan.kernels):
        return None
    digest = hashlib.sha256()
    for op, kernel in zip(plan.graph.operators, plan.kernels, strict=True):
        digest.update(f"{recipes[kernel]}\0{op.inputs}\0{op.outputs}\0".encode())
    for program in plan.programs:
        for lane in program.lanes:
            digest.update(f"{[slot for slot in lane if isinstance(slot, RTask)]}\0".encode())
    return digest.hexdigest()


class Time(NamedTuple):
    """A measured time as it is exchanged between caches: of one kernel's rTask (or of a plan), on one device."""

    device: str
    toolchain: str
    kernel: str
    us: float
    stored_at: float  # seconds since 1970


def export_times(path: str | os.PathLike[str]) -> int:
    """Write all measured times of this user's cache into a file, for the caches of others; how many there are."""
    times = profile_store("", "").times()
    files.write(path, json.dumps({"rammer times": _FORM, "times": times}))
    return len(times)


def import_times(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Merge an exported file into this user's cache: how many times it has, and how many of them are new here.

    Of two times for the same kernel, device and toolchain the younger one stays; those of other devices lie beside
    this one's and are never asked for here. Raises RammerError for what is no such file, and then nothing is changed.
    """
    try:
        with files.open_plain(path) as file:
            content = json.loads(file.read())
        if content["rammer times"] != _FORM:
            raise ValueError(f"its form is {content['rammer times']!r}, not {_FORM}")
        times = [_time(row) for row in content["times"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RammerError(
            f"{path}: no file of measured times: {error!r}", hint="`rammer cache export` writes one"
        ) from error
    return len(times), profile_store("", "").merge(times)


def _time(row: Any) -> Time:
    """A row of a file that somebody sent. Raises ValueError."""
    time = Time(*row)
    texts, numbers = time[:3], time[3:]
    if not all(type(t) is str for t in texts) or not all(type(n) in (int, float) and 0 <= n < inf for n in numbers):
        raise ValueError(f"{row!r} is no time")
    return time


def profile_store(device: str, toolchain: str) -> ProfileStore:
    """The store of this user, in the cache folder, for one device and toolchain (names that change with either)."""
    return ProfileStore(config.cache_dir() / "profiles.sqlite", device, toolchain)


class ProfileStore:
    """rTask times of one device and toolchain in an SQLite file, which many processes and threads may share.

    A damaged file is moved aside with a warning, and a new one begun. Times are a cache, and losing them costs only
    measuring again: where the file cannot be used (a full or read-only disk), the store warns and knows nothing.
    """

    def __init__(self, path: str | os.PathLike[str], device: str, toolchain: str) -> None:
        self.path = Path(path)
        self.device, self.toolchain = device, toolchain

    def get(self, kernels: Iterable[str]) -> dict[str, float]:
        """Microseconds of the kernels that are known, by their keys."""
        return self._known("SELECT kernel, us FROM rtask", kernels)

    def verdicts(self, kernels: Iterable[str]) -> dict[str, str]:
        """What was found wrong with the kernels that are known, by their keys: nothing of those that are right."""
        return self._known("SELECT kernel, wrong FROM verdict", kernels)

    def _known(self, select: str, kernels: Iterable[str]) -> dict[str, Any]:
        wanted = list(dict.fromkeys(kernels))
        if not wanted:
            return {}

        def read(database: sqlite3.Connection) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                marks = ", ".join("?" * len(batch))
                query = f"{select} WHERE device = ? AND toolchain = ? AND kernel IN ({marks})"
                found.update(database.execute(query, (self.device, self.toolchain, *batch)))
            return found

        return self._use(read, {})

    def put(self, times: Mapping[str, float]) -> None:
        """Store microseconds by kernel key; newer times replace older ones."""
        self._store("rtask", {kernel: float(us) for kernel, us in times.items()})

    def times(self) -> list[Time]:
        """Every time in the file, of whatever device."""

        def read(database: sqlite3.Connection) -> list[Time]:
            rows = database.execute("SELECT device, toolchain, kernel, us, stored_at FROM rtask ORDER BY 1, 2, 3")
            return [Time(*row) for row in rows]

        return self._use(read, [])

    def merge(self, times: Iterable[Time]) -> int:
        """Store times of any device, where they are younger than those that are known; how many were."""

        def write(database: sqlite3.Connection) -> int:
            before = database.total_changes
            database.executemany(
                "INSERT INTO rtask VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET us = excluded.us, stored_at = excluded.stored_at WHERE excluded.stored_at > stored_at",
                times,
            )
            return database.total_changes - before

        return self._use(write, 0)

    def put_verdicts(self, wrong: Mapping[str, str]) -> None:
        """Store what was found wrong with kernels, by their keys."""
        self._store("verdict", wrong)

    def _store(self, table: str, values: Mapping[str, float] | Mapping[str, str]) -> None:
        now = time.time()
        rows = [(self.device, self.toolchain, kernel, value, now) for kernel, value in values.items()]
        if not rows:
            return

        def write(database: sqlite3.Connection) -> None:
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?)", rows)

        self._use(write, None)

    def _use(self, action: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> Answer:
        """Run one transaction. A damaged file is replaced once; `otherwise` is the answer of a file beyond use."""
        for attempt in range(2):
            try:
                with closing(self._open()) as database, database:
                    return action(database)
            except sqlite3.DatabaseError as error:
                if attempt or error.sqlite_errorcode not in _DAMAGED:
                    warnings.warn(f"profile cache {self.path} is not usable: {error}", RuntimeWarning, stacklevel=3)
                    break
                self._move_aside(str(error))
            except OSError as error:
                warnings.warn(f"profile cache {self.path} is not usable: {error}", RuntimeWarning, stacklevel=3)
                break
        return otherwise

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=WAIT_S)
        try:
            database.execute("PRAGMA synchronous = OFF")  # a power cut may damage it: then a new one is begun
            (form,) = database.execute("PRAGMA user_version").fetchone()
            if form not in (0, _FORM):
                error = sqlite3.DatabaseError(f"its form is {form}, not {_FORM}")
                error.sqlite_errorcode = sqlite3.SQLITE_FORMAT
                raise error
            if form == 0:
                database.execute("PRAGMA journal_mode = WAL")  # readers go on while one process writes
                with database:
                    database.execute(_SCHEMA)
                    database.execute(f"PRAGMA user_version = {_FORM}")
            database.execute(_VERDICTS)  # files of older versions of rammer lack it
        except BaseException:
            database.close()
            raise
        return database

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + suffix)
            with suppress(FileNotFoundError):
                part.replace(aside.with_name(aside.name + suffix))
        warnings.warn(
            f"profile cache {self.path} was damaged ({why}); moved to {aside.name}, beginning a new one",
            RuntimeWarning,
            stacklevel=4,
        )
