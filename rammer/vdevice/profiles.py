"""Store measured rTask times on disk, so that each rKernel is measured once per device and toolchain.

Known as: tuning cache, tuning log.
"""

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
from rammer.vdevice.sealed import SealedFile, SqlTable, Transaction

Answer = TypeVar("Answer")
Use: TypeAlias = Callable[[Callable[[Transaction], Answer], Callable[[Exception], Answer]], Answer]

EXPORTED = 1  # the form of exported files
_KEY = ("device TEXT", "toolchain TEXT", "kernel TEXT")
_TIMES = SqlTable("rtask", (*_KEY, "us REAL", "stored_at REAL"), 3)
_VERDICTS = SqlTable("verdict", (*_KEY, "wrong TEXT", "stored_at REAL"), 3)


def kernel_key(kernel: RKernel, text: str) -> str:
    """Return a key of a kernel's time: a hash of its text, its number of rTasks and its arguments' sizes.

    The caches' keys add device and toolchain.
    """
    sizes = (t.nbytes for t in kernel.argument_types())
    return hashlib.sha256("\0".join((text, str(kernel.num_rtasks), *map(str, sizes))).encode()).hexdigest()


@lru_cache(maxsize=1)
def generators() -> str:
    """Return a fingerprint of the code that proves rKernels, generates their text and runs them."""
    package = Path(__file__).parents[1]
    files = sorted(f for folder in ("ir", "kernels", "planner", "vdevice") for f in (package / folder).rglob("*.py"))
    texts = (f.read_bytes() for f in (*files, package / "compiler" / "candidates.py"))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def recipe_keys(kernels: Iterable[RKernel], spec: VDeviceSpec) -> dict[RKernel, str]:
    """Return keys of rKernels by their contents: kernels of equal keys have equal texts and results.

    The contents are operation, body, packing and form, rammer's own code, the plugin's version, and the spec. Names and
    schedules do not identify a kernel: a plugin may keep both and change the body.
    """
    common = f"{generators()}\0{spec}"
    operations: dict[Operation, str] = {}
    found = {}
    for k in kernels:
        if k.operation not in operations:
            operations[k.operation] = f"{k.operation.expr}\0{k.operation.static}"
        contents = (str(part) for part in (k.body, k.packing, k.form, k.pipeline_depth, k.origin))
        parts = (common, operations[k.operation], *contents)
        found[k] = "recipe " + hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()
    return found


class Time(NamedTuple):
    """A measured time of one kernel's rTask on one device, in the form in which caches exchange it."""

    device: str
    toolchain: str
    kernel: str
    us: float
    stored_at: float  # seconds since 1970


def export_times(path: str | os.PathLike[str]) -> int:
    """Write all measured times of this user's cache to a file for other users. Returns their number."""
    times = profile_store("", "").times()
    files.write(path, json.dumps({"rammer times": EXPORTED, "times": times}))
    return len(times)


def import_times(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Merge an exported file into this user's cache. Returns its number of times, and how many of them are new here.

    Of two times for one kernel, device and toolchain the newer stays. Times of other devices are kept but unused here.
    Raises RammerError for a file of another format; nothing is changed then.
    """
    try:
        with files.open_plain(path) as file:
            content = json.loads(file.read())
        if content["rammer times"] != EXPORTED:
            raise ValueError(f"its form is {content['rammer times']!r}, not {EXPORTED}")
        times = [_time(row) for row in content["times"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RammerError(f"{path}: no measured times: {error!r}", hint="`rammer cache export` writes one") from error
    return len(times), profile_store("", "").merge(times)


def _time(row: Any) -> Time:
    """Parse a row of an untrusted file. Raises ValueError."""
    time = Time(*row)
    texts, numbers = time[:3], time[3:]
    if not all(type(t) is str for t in texts) or not all(type(n) in (int, float) and 0 <= n < inf for n in numbers):
        raise ValueError(f"{row!r} is no time")
    return Time(*texts, *map(float, numbers))


def profile_store(device: str, toolchain: str) -> ProfileStore:
    """Return this user's store, in the cache folder, for one device and toolchain."""
    return ProfileStore(config.cache_dir() / "profiles.sqlite", device, toolchain)


class ProfileStore:
    """rTask times and verdicts of one device and toolchain, in a file shared by processes and threads.

    If the file is unusable (a full or read-only disk), the store warns and behaves as if empty.
    """

    def __init__(self, path: str | os.PathLike[str], device: str, toolchain: str) -> None:
        self.device, self.toolchain = device, toolchain
        self._file = SealedFile(Path(path), (_TIMES, _VERDICTS))

    def get(self, kernels: Iterable[str]) -> dict[str, float]:
        """Return the microseconds of known kernels by their keys."""
        return self._known(_TIMES, kernels)

    def verdicts(self, kernels: Iterable[str]) -> dict[str, str]:
        """Return the errors of known kernels by their keys; "" for correct ones."""
        return self._known(_VERDICTS, kernels)

    def _known(self, table: SqlTable, kernels: Iterable[str]) -> dict[str, Any]:
        wanted = list(kernels)
        if not wanted:
            return {}
        own = self.device, self.toolchain
        return self._use(self._file.read, lambda all: {row[2]: row[3] for row in all.select(table, own, wanted)}, {})

    def put(self, times: Mapping[str, float]) -> None:
        """Store microseconds by kernel key. Newer times replace older ones."""
        self._store(_TIMES, {kernel: float(us) for kernel, us in times.items()})

    def times(self) -> list[Time]:
        """Return all times in the file, of all devices."""
        return self._use(self._file.read, lambda all: sorted(Time(*row) for row in all.select(_TIMES)), [])

    def merge(self, times: Iterable[Time]) -> int:
        """Store times of any device that are newer than the known ones. Returns how many were."""

        def write(all: Transaction) -> int:
            stored_at = {row[:3]: row[4] for row in all.select(_TIMES)}
            younger = [time for time in times if time.stored_at > stored_at.get(time[:3], -inf)]
            all.insert(_TIMES, younger)
            return len(younger)

        return self._use(self._file.write, write, 0)

    def put_verdicts(self, wrong: Mapping[str, str]) -> None:
        """Store the errors of kernels by their keys."""
        self._store(_VERDICTS, wrong)

    def _store(self, table: SqlTable, values: Mapping[str, float] | Mapping[str, str]) -> None:
        now = time.time()
        if rows := [(self.device, self.toolchain, kernel, value, now) for kernel, value in values.items()]:
            self._use(self._file.write, lambda all: all.insert(table, rows), None)

    def _use(self, run: Use[Answer], action: Callable[[Transaction], Answer], otherwise: Answer) -> Answer:
        def unusable(error: Exception) -> Answer:
            warnings.warn(f"the cache {self._file.path} is not usable: {error}", RuntimeWarning, stacklevel=5)
            return otherwise

        return run(action, unusable)
