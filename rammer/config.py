"""The RAMMER_* environment flags: one registry, read at use and never at import."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TypeVar

from rammer.errors import RammerError, did_you_mean

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Flag:
    """An environment variable that rammer reads."""

    name: str
    default: str
    help: str


FLAGS: dict[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag("RAMMER_VDEVICE", "cpu", "the vDevice to use where none is named"),
        Flag(
            "RAMMER_POLICY",
            "auto",
            "the scheduling policy to use where none is named: `wavefront:beyond=off`",
        ),
        Flag("RAMMER_CC", "", "C compiler to use instead of ziglang's: `gcc`, `clang`, `/opt/zig/zig cc`"),
        Flag(
            "RAMMER_HIPCC",
            "",
            "HIP compiler for AMD GPUs instead of ziglang's clang: `/opt/rocm/bin/hipcc`, `clang-19`",
        ),
        Flag("RAMMER_CODE_OBJECT", "5", "version of code objects for AMD GPUs: 4, 5 or 6"),
        Flag("RAMMER_CACHE_DIR", "", "folder of compiled kernels and profiles; the platform's cache folder by default"),
        Flag(
            "RAMMER_DEBUG",
            "0",
            "stderr: 1 devices and plugins, 2 times, 3 choices, 4 source, 5 slots; each with those below",
        ),
        Flag(
            "RAMMER_VERIFY",
            "1",
            "0 verify no plan (benchmarks), 1 graph and plan before it is built, 2 the graph after every pass as well",
        ),
        Flag(
            "RAMMER_CHECK",
            "1",
            "0 tries no rKernel out and runs no program before it is used, 1 some of each, 2 all of both",
        ),
        Flag(
            "RAMMER_DUMP_DIR", "", "folder that receives graph, plan, timeline, source and build log of every compile"
        ),
        Flag("RAMMER_KERNELS_DIR", "", "folder of imported kernels; the platform's folder for user data by default"),
        Flag(
            "RAMMER_NUM_VEUS",
            "",
            "vEUs of the CPU; by default one per core that this process may use, within its quota",
        ),
        Flag("RAMMER_VECTOR_LANES", "", "fp32 lanes of the CPU's vectors: 4, 8 or 16; by default what the CPU has"),
        Flag(
            "RAMMER_MATRIX_UNIT",
            "1",
            "0 leaves AMX, AVX512-BF16 and AVX512-VNNI alone, and on NVIDIA GPUs tensor cores for float32 in parts",
        ),
        Flag(
            "RAMMER_DATA_AS_FLAG",
            "0",
            "1 hands small results over on NVIDIA GPUs by words that say themselves that they are there: no fence",
        ),
        Flag("RAMMER_DISABLE_CPU_FEATURES", "", "features that count as missing in the CPU, e.g. `amx*,avx512*`"),
        Flag("RAMMER_HAND_OVER", "1", "0 lets no vEU of the CPU that waits do parts of another one's rTask"),
        Flag("RAMMER_PIN", "1", "0 leaves the vEU threads of the CPU free to move between cores"),
        Flag("RAMMER_SPIN_MS", "3", "milliseconds for which idle vEU threads of the CPU spin before they sleep"),
        Flag(
            "RAMMER_SUBNORMALS",
            "0",
            "1 computes with numbers below the normal ones on the CPU, at a fraction of the speed; else they are zero",
        ),
        Flag("RAMMER_WATCHDOG_SECONDS", "60", "seconds without progress after which a waiting vEU stops the run"),
        Flag("RAMMER_PRECISION", "fp32", "what operands of products may be rounded to where none is named: tf32, bf16"),
        Flag(
            "RAMMER_GPU_GRAPH",
            "",
            "1 records the launches of a program on a GPU as one graph, 0 none; by default several on NVIDIA's",
        ),
        Flag("RAMMER_TUNE_SECONDS", "20", "time budget for measuring candidate kernels in one compile"),
        Flag("RAMMER_WINOGRAD", "1", "0 computes convolutions only directly, with smaller rounding errors"),
        Flag("RAMMER_DISABLE_PLUGINS", "", "names of plugins not to load, separated by commas"),
        Flag("RAMMER_TRACE_PLUGINS", "", "1 prints every hook call and its answer"),
        Flag("RAMMER_TEST_VDEVICES", "", "tests: the only vDevices to test, separated by commas"),
        Flag("RAMMER_REQUIRE_VDEVICES", "", "tests: vDevices whose absence is a failure and no skip"),
        Flag("RAMMER_SEED", "", "tests: seed that replays a random case"),
    )
}

RENAMED = {"RAMMER_CUDA_GRAPH": "RAMMER_GPU_GRAPH"}

_warned: set[str] = set()
_stand_ins: dict[Path, tuple[Path, str]] = {}  # for cache folders that cannot be used: temporary ones, and why
_cache_lock = threading.Lock()  # compilers are called by several threads at once


def get(name: str) -> str:
    """The flag's value now, or its default. Unknown RAMMER_* variables are warned about, each once.

    Raises RammerError if a variable has the old name of a flag.
    """
    _check_environment()
    return os.environ.get(name) or FLAGS[name].default


def integer(name: str, low: int = 0) -> int | None:
    """A flag's value as an integer of at least `low`, or None if it is empty. Raises RammerError."""
    return _parsed(name, int, lambda value: value >= low, f"integer of {low} or more")


def number(name: str) -> float | None:
    """A flag's value as a non-negative number, or None if it is empty. Raises RammerError."""
    return _parsed(name, float, lambda value: 0 <= value < inf, "non-negative number")


def _parsed(name: str, read: Callable[[str], Number], fits: Callable[[Number], bool], what: str) -> Number | None:
    if not (text := get(name)):
        return None
    with suppress(ValueError):
        if fits(value := read(text)):
            return value
    raise RammerError(f"{name}={text!r} is no {what}", hint=FLAGS[name].help)


def names(name: str) -> tuple[str, ...]:
    """A flag's comma-separated names."""
    return tuple(part for part in (p.strip() for p in get(name).split(",")) if part)


@contextmanager
def override(**values: str | None) -> Iterator[None]:
    """Set flags (None: unset) inside a `with` block; child processes see them too."""
    for name in values:
        if name not in FLAGS:
            raise RammerError(f"no flag {name!r}", hint=did_you_mean(name, FLAGS))
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _check_environment() -> None:
    for name in os.environ:
        if new := RENAMED.get(name):
            raise RammerError(f"{name} is called {new} now", hint=f"set {new}={os.environ[name]} in its place")
        if name.startswith("RAMMER_") and name not in FLAGS and name not in _warned:
            _warned.add(name)
            hint = did_you_mean(name, FLAGS) or f"known: {', '.join(sorted(FLAGS))}"
            warnings.warn(f"unknown variable {name}; {hint}", stacklevel=3)


def cache_dir() -> Path:
    """rammer's private cache folder, made with mode 0700.

    Where the platform's cannot be used, a temporary one takes its place until the process ends, and a warning says so.
    Raises RammerError if the folder that RAMMER_CACHE_DIR names cannot be used.
    """
    return _cache()[0]


def describe_cache() -> str:
    """The cache folder and why it is this one, for people. Raises RammerError as `cache_dir` does."""
    path, why = _cache()
    return f"{path} ({why})"


def _cache() -> tuple[Path, str]:
    """The folder, and why it is this one."""
    if text := get("RAMMER_CACHE_DIR"):
        return _writable(private_dir(Path(text))), "named by RAMMER_CACHE_DIR"
    with _cache_lock:
        wanted = _platform_cache()
        if wanted not in _stand_ins:
            try:
                if not wanted.is_absolute():
                    raise RammerError(f"there is no home folder for caches ({wanted})")
                path = _writable(private_dir(wanted))
                for inner in filter(Path.is_dir, path.iterdir()):
                    _writable(private_dir(inner))
                return path, "the platform's folder for caches"
            except (RammerError, OSError) as error:
                why = error.what if isinstance(error, RammerError) else str(error)
            _stand_ins[wanted] = _temporary_cache(), why
            warnings.warn(
                f"{why}; a temporary cache is used, and what is compiled now is compiled again in the next process "
                "(set RAMMER_CACHE_DIR to a folder that is kept)",
                RuntimeWarning,
                stacklevel=4,
            )
        path, why = _stand_ins[wanted]
        return path, f"temporary: {why}"


def _platform_cache() -> Path:
    """The platform's folder for caches, in the home folder if nothing else is said."""
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches/rammer"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "rammer"


def _temporary_cache() -> Path:
    """A private folder that goes with this process. Raises RammerError if there is no room for one."""
    try:
        path = Path(tempfile.mkdtemp(prefix="rammer-cache-"))
    except OSError as error:
        raise RammerError(
            f"no cache folder can be made, not even a temporary one: {error.strerror or error}",
            hint="set RAMMER_CACHE_DIR to a folder of your own",
        ) from error
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a child that was forked later
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def _writable(path: Path) -> Path:
    if not os.access(path, os.W_OK | os.X_OK):
        raise RammerError(f"the folder {path} is read-only", hint="set RAMMER_CACHE_DIR to a folder of your own")
    return path


def private_dir(path: Path) -> Path:
    """The folder, made with mode 0700 if missing. Raises RammerError if others own it or may write to it.

    Code is loaded from there, so whoever can write to it can run code as us.
    """
    hint = "set RAMMER_CACHE_DIR to a folder of your own"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise RammerError(f"cannot make the folder {path}: {error.strerror}", hint=hint) from None
    if info.st_uid != os.getuid():
        raise RammerError(f"the folder {path} belongs to another user", hint=hint)
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RammerError(f"other users may write to the folder {path}", hint=f"chmod 700 {path}, or {hint}")
    return path.absolute()
