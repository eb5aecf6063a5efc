"""Read the RAMMER_* environment flags from one registry, at each use and never at import."""

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
from typing import Literal, TypeVar

from rammer.errors import RammerError, did_you_mean

Number = TypeVar("Number", int, float)

Kind = Literal["text", "names", "boolean", "integer", "number"]  # of a flag; a function of this name reads it


@dataclass(frozen=True, slots=True)
class Flag:
    """An environment variable that rammer reads: its kind, default and description, and the range of a number."""

    name: str
    default: str
    help: str
    kind: Kind = "text"
    low: float = 0
    high: float = inf

    @property
    def values(self) -> str:
        """The values that it takes, as text for people."""
        if self.kind == "boolean":
            return "one of 1, on, yes, true, 0, off, no, false"
        what = "an integer" if self.kind == "integer" else "a number"
        return f"{what} from {self.low:g}" + (f" to {self.high:g}" if self.high < inf else " on")


UP_TO_2: tuple[Kind, float, float] = ("integer", 0, 2)
ANY_NUMBER: tuple[Kind, float, float] = ("number", 0, 1e9)
FLAGS: dict[str, Flag] = {
    flag.name: flag
    for flag in (
        Flag("RAMMER_VDEVICE", "cpu", "the vDevice to use where none is named"),
        Flag("RAMMER_POLICY", "auto", "the scheduling policy to use where none is named: `wavefront:beyond=off`"),
        Flag("RAMMER_PROGRESS", "1", "0 draws no progress on a terminal or in a notebook", "boolean"),
        Flag("RAMMER_CC", "", "C compiler to use instead of ziglang's: `gcc`, `clang`, `/opt/zig/zig cc`"),
        Flag("RAMMER_HIPCC", "", "HIP compiler to use instead of ziglang's clang: `/opt/rocm/bin/hipcc`, `clang-19`"),
        Flag("RAMMER_CODE_OBJECT", "5", "version of code objects for AMD GPUs: 4, 5 or 6", "integer", 4, 6),
        Flag("RAMMER_CACHE_DIR", "", "folder of compiled kernels and profiles; the platform's cache folder by default"),
        Flag("RAMMER_DEBUG", "0", "stderr: 1 devices, plugins; 2 also times, 3 choices, 4 source, 5 slots", "integer"),
        Flag(
            "RAMMER_VERIFY", "1", "0 verifies nothing, 1 graph, plan and image, 2 the graph after every pass", *UP_TO_2
        ),
        Flag("RAMMER_CHECK", "1", "0 tries no rKernel or program out before it is used, 1 some, 2 all", *UP_TO_2),
        Flag("RAMMER_DUMP_DIR", "", "folder that receives graph, plan, timeline, source and build log of each compile"),
        Flag("RAMMER_KERNELS_DIR", "", "folder of imported kernels; the platform's folder for user data by default"),
        Flag("RAMMER_NUM_VEUS", "", "vEUs of the CPU; by default one per core within the quota", "integer", 1, 1024),
        Flag("RAMMER_VECTOR_LANES", "", "fp32 lanes of the CPU's vectors: 4, 8, 16; by default its own", "integer", 1),
        Flag("RAMMER_MATRIX_UNIT", "1", "0 uses no AMX, AVX512-BF16, VNNI, nor tensor cores for float32", "boolean"),
        Flag("RAMMER_DISABLE_CPU_FEATURES", "", "CPU features that count as missing, e.g. `amx*,avx512*`", "names"),
        Flag("RAMMER_HAND_OVER", "1", "0 lets no waiting vEU of the CPU do parts of another one's rTask", "boolean"),
        Flag("RAMMER_PIN", "1", "0 leaves the vEU threads of the CPU free to move between cores", "boolean"),
        Flag("RAMMER_SPIN_MS", "3", "milliseconds for which idle vEUs of the CPU spin before they sleep", *ANY_NUMBER),
        Flag(
            "RAMMER_SUBNORMALS", "0", "1 computes subnormal numbers on the CPU, slowly; else they are zero", "boolean"
        ),
        Flag("RAMMER_WATCHDOG_SECONDS", "60", "seconds without progress that stop a run", "number", 1e-3, 1e9),
        Flag("RAMMER_PRECISION", "fp32", "what operands of products may be rounded to where none is named: tf32, bf16"),
        Flag("RAMMER_GPU_GRAPH", "", "1 launches a program on a GPU as one graph; by default on NVIDIA's", "boolean"),
        Flag("RAMMER_TUNE_SECONDS", "20", "time budget for measuring candidate kernels in one compile", *ANY_NUMBER),
        Flag("RAMMER_NUMERICS", "fast", "strict takes only rKernels that spread no NaN and round as direct sums do"),
        Flag("RAMMER_WINOGRAD", "1", "0 computes convolutions only directly, with smaller rounding errors", "boolean"),
        Flag("RAMMER_DISABLE_PLUGINS", "", "names of plugins not to load, separated by commas", "names"),
        Flag("RAMMER_PLUGINS", "", "Python files to load as plugins, too, separated by commas", "names"),
        Flag("RAMMER_TRACE_PLUGINS", "0", "1 prints every hook call and its answer", "boolean"),
        Flag("RAMMER_TEST_VDEVICES", "", "tests: the only vDevices to test, separated by commas", "names"),
        Flag("RAMMER_REQUIRE_VDEVICES", "", "tests: vDevices whose absence is a failure and no skip", "names"),
        Flag("RAMMER_SEED", "", "tests: seed that replays a random case", "integer"),
    )
}

RENAMED = {"RAMMER_CUDA_GRAPH": "RAMMER_GPU_GRAPH"}

_warned: set[str] = set()
_stand_ins: dict[Path, tuple[Path, str]] = {}  # temporary replacements of unusable cache folders, and why
_cache_lock = threading.Lock()  # compilers are called by several threads at once


BOOLEANS = dict.fromkeys(("1", "on", "yes", "true"), True) | dict.fromkeys(("0", "off", "no", "false"), False)


def get(name: str) -> str:
    """Return the flag's current text, or its default. Warns about unknown RAMMER_* variables, once each.

    Raises RammerError if a variable has the old name of a flag.
    """
    _check_environment()
    return os.environ.get(name) or FLAGS[name].default


def boolean(name: str) -> bool | None:
    """Return whether the flag is on, or None if it is empty. Raises RammerError for any other text."""
    if not (text := get(name)):
        return None
    if (found := BOOLEANS.get(text.strip().lower())) is None:
        raise _refused(name, f"{name}={text!r}")
    return found


def integer(name: str) -> int | None:
    """Return the flag's value as an integer in its range, or None if it is empty. Raises RammerError."""
    return _in_range(name, int)


def number(name: str, given: float | None = None) -> float | None:
    """Return the flag's value as a number in its range, or None if it is empty. Raises RammerError.

    `given`: the value of an argument (named like the flag, in lower case, without RAMMER_), which overrides the flag.
    """
    return _in_range(name, float, given)


def _in_range(name: str, read: Callable[[str], Number], given: Number | None = None) -> Number | None:
    """Return a flag's text, or the given value, as a number in the flag's range."""
    flag, text = FLAGS[name], get(name)
    if given is None and not text:
        return None
    with suppress(ValueError, TypeError):
        value = read(text) if given is None else given
        if flag.low <= value <= flag.high and value < inf:
            return value
    own = name.removeprefix("RAMMER_").lower()
    raise _refused(name, f"{name}={text!r}" if given is None else f"{own}={given!r}")


def _refused(name: str, what: str) -> RammerError:
    flag = FLAGS[name]
    return RammerError(f"{what}: it should be {flag.values}", hint=f"{name}: {flag.help}")


def names(name: str) -> tuple[str, ...]:
    """Return a flag's comma-separated names."""
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
    """Return rammer's private cache folder, created with mode 0700.

    If the platform's folder is unusable, warns and returns a temporary one that lasts until the process ends. Raises
    RammerError if the folder that RAMMER_CACHE_DIR names is unusable.
    """
    return _cache()[0]


def describe_cache() -> str:
    """Return the cache folder and why it was chosen, as text for people. Raises RammerError as `cache_dir` does."""
    path, why = _cache()
    return f"{path} ({why})"


def _cache() -> tuple[Path, str]:
    """Return the cache folder, and why it was chosen."""
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
    """Return the platform's cache folder, by default in the home folder."""
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches/rammer"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "rammer"


def _temporary_cache() -> Path:
    """Return a new private folder, deleted when this process ends. Raises RammerError if it cannot be created."""
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
    """Return the folder, created with mode 0700 if missing. Raises RammerError if others own it or may write to it.

    Code is loaded from there, so a user who can write to it can run code as this process's user.
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
