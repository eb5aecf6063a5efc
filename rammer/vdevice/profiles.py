"""Measured rTask times on disk, so that no rKernel is measured twice on one device with one toolchain."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rammer import config, files
from rammer.errors import RammerError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.vdevice.sealed import SealedFile, Table, Transaction

Answer = TypeVar("Answer")
Use: TypeAlias = Callable[[Callable[[Transaction], Answer], Callable[[Exception], Answer]], Answer]

EXPORTED = 1  # the form of exported files
_KEY = ("device TEXT", "toolchain TEXT", "kernel TEXT")
_TIMES = Table("rtask", (*_KEY, "us REAL", "stored_at REAL"), 3)
_VERDICTS = Table("verdict", (*_KEY, "wrong TEXT", "stored_at REAL"), 3)


def kernel_key(kernel: RKernel, text: str) -> str:
    """What a time depends on beside device and toolchain: its text, and the memory it walks through."""
    sizes = (t.nbytes for t in kernel.argument_types())
    parts = (text, str(kernel.num_rtasks), *map(str, sizes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def generators() -> str:
    """A fingerprint of the code that proves rKernels, turns them into text, and runs them."""
    package = Path(__file__).parents[1]
    files = sorted(f for folder in ("ir", "kernels", "planner", "vdevice") for f in (package / folder).rglob("*.py"))
    return hashlib.sha256(
        b"\0".join(f.read_bytes() for f in (*files, package / "compiler" / "candidates.py"))
    ).hexdigest()


def recipe_keys(kernels: Iterable[RKernel], spec: VDeviceSpec) -> dict[RKernel, str]:
    """Keys of rKernels by their contents: equal ones compute the same by the same text.

    The contents are operation, body, packing and form, rammer's own code and the plugin's version, and the spec.
    Neither a name nor a schedule says what a kernel is: a plugin may keep both and change the body.
    """
    common = f"{generators()}\0{spec}"
    operations: dict[Operation, str] = {}
    found = {}
    for k in kernels:
        if k.operation not in operations:
            operations[k.operation] = f"{k.operation.expr}\0{k.operation.static}"
        contents = (str(part) for part in (k.body, k.packing, k.form, k.places, k.origin))
        parts = (common, operations[k.operation], *contents)
        found[k] = "recipe " + hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()
    return found


class Time(NamedTuple):
    """A measured time as it is exchanged between caches: of one kernel's rTask, on one device."""

    device: str
    toolchain: str
    kernel: str
    us: float
    stored_at: float  # seconds since 1970


def export_times(path: str | os.PathLike[str]) -> int:
    """Write all measured times of this user's cache into a file, for the caches of others; how many there are."""
    times = profile_store("", "").times()
    files.write(path, json.dumps({"rammer times": EXPORTED, "times": times}))
    return len(times)


def import_times(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Merge an exported file into this user's cache: how many times it has, and how many of them are new here.

    Of two times for the same kernel, device and toolchain the younger one stays; those of other devices lie beside
    this one's and are never asked for here. Raises RammerError for what is no such file, and then nothing is changed.
    """
    try:
        with files.open_plain(path) as file:
            content = json.loads(file.read())
        if content["rammer times"] != EXPORTED:
            raise ValueError(f"its form is {content['rammer times']!r}, not {EXPORTED}")
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
    return Time(*texts, *map(float, numbers))


def profile_store(device: str, toolchain: str) -> ProfileStore:
    """The store of this user, in the cache folder, for one device and toolchain (names that change with either)."""
    return ProfileStore(config.cache_dir() / "profiles.sqlite", device, toolchain)


class ProfileStore:
    """rTask times and verdicts of one device and toolchain in a file, which many processes and threads may share.

    Where the file cannot be used (a full or read-only disk), the store warns and knows nothing.
    """

    def __init__(self, path: str | os.PathLike[str], device: str, toolchain: str) -> None:
        self.device, self.toolchain = device, toolchain
        self._file = SealedFile(Path(path), (_TIMES, _VERDICTS))

    def get(self, kernels: Iterable[str]) -> dict[str, float]:
        """Microseconds of the kernels that are known, by their keys."""
        return self._known(_TIMES, kernels)

    def verdicts(self, kernels: Iterable[str]) -> dict[str, str]:
        """What was found wrong with the kernels that are known, by their keys: nothing of those that are right."""
        return self._known(_VERDICTS, kernels)

    def _known(self, table: Table, kernels: Iterable[str]) -> dict[str, Any]:
        wanted = list(kernels)
        if not wanted:
            return {}
        own = self.device, self.toolchain
        return self._use(self._file.read, lambda all: {row[2]: row[3] for row in all.select(table, own, wanted)}, {})

    def put(self, times: Mapping[str, float]) -> None:
        """Store microseconds by kernel key; newer times replace older ones."""
        self._store(_TIMES, {kernel: float(us) for kernel, us in times.items()})

    def times(self) -> list[Time]:
        """Every time in the file, of whatever device."""
        return self._use(self._file.read, lambda all: sorted(Time(*row) for row in all.select(_TIMES)), [])

    def merge(self, times: Iterable[Time]) -> int:
        """Store times of any device, where they are younger than those that are known; how many were."""

        def write(all: Transaction) -> int:
            stored_at = {row[:3]: row[4] for row in all.select(_TIMES)}
            younger = [time for time in times if time.stored_at > stored_at.get(time[:3], -inf)]
            all.insert(_TIMES, younger)
            return len(younger)

        return self._use(self._file.write, write, 0)

    def put_verdicts(self, wrong: Mapping[str, str]) -> None:
        """Store what was found wrong with kernels, by their keys."""
        self._store(_VERDICTS, wrong)

    def _store(self, table: Table, values: Mapping[str, float] | Mapping[str, str]) -> None:
        now = time.time()
        if rows := [(self.device, self.toolchain, kernel, value, now) for kernel, value in values.items()]:
            self._use(self._file.write, lambda all: all.insert(table, rows), None)

    def _use(self, run: Use[Answer], action: Callable[[Transaction], Answer], otherwise: Answer) -> Answer:
        def unusable(error: Exception) -> Answer:
            warnings.warn(f"the cache {self._file.path} is not usable: {error}", RuntimeWarning, stacklevel=5)
            return otherwise

        return run(action, unusable)
