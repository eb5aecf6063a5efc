"""Find the C compiler, run it with limits of time and memory, and cache its results on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from rammer import config, files
from rammer.errors import ToolchainError
from rammer.forkpool import usable_cpus
from rammer.vdevice.toolchain.objects import ObjectStore

Item = TypeVar("Item")
Made = TypeVar("Made")

# Bit-exact integers and IEEE NaN, but no errno, no traps, and a*b+c may be one instruction.
# -g0: by default zig generates debug information and strips it again, which takes a fifth of the time.
FLAGS = (
    *("-std=gnu11", "-O3", "-g0", "-fPIC", "-shared", "-w", "-fwrapv", "-fno-strict-aliasing"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
# LLVM 22 stores a masked vector of narrowed elements with a single active lane at the width before narrowing: it
# overwrites what follows (AVX-512; llvm/llvm-project#179489). Loops of less than 16 iterations have such last vectors
# unless no loop counts as short; then the remainder is scalar, and as fast.
CLANG_REPAIR = ("-mllvm", "-vectorizer-min-trip-count=0")
# LLVM's load PRE takes up to a quarter of compile time if there are many loops, and finds almost nothing, because sums
# lie in registers. Its loop strength reduction takes up to a fifth. Our loops have constant steps, which addressing
# modes encode directly: programs are as fast without.
_CLANG = (*CLANG_REPAIR, "-mllvm", "-enable-load-pre=false", "-mllvm", "-disable-lsr")
FAMILY_FLAGS = {"gcc": (), "clang": _CLANG, "zig": _CLANG}
# Headers of the compiler itself, and ours.
OWN_HEADERS = frozenset(
    f"{name}.h"
    for name in ("stdint", "stddef", "stdbool", "stdalign", "stdarg", "stdatomic", "float", "limits", "math", "string")
)
INCLUDE = Path(__file__).parent / "include"
MACHINE_CODE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\0asm")  # magic numbers: Linux, macOS, WebAssembly
MAX_STDERR = 4000
MEMORY_BYTES = 4 << 30  # limit for a compiler whose CPU time is limited
SIGNALS_S = 0.1  # longest wait: a signal right before it is only seen after it
_INCLUDE_LINE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)", re.M)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: its command, its family ("zig", "clang" or "gcc"), and the version that keys caches."""

    command: tuple[str, ...]
    family: str
    version: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of each call."""
        return *FLAGS, *FAMILY_FLAGS[self.family]

    def compile_shared(
        self, text: str, flags: Sequence[str] = (), *, timeout_s: float = 120.0, cpu_s: int | None = None
    ) -> bytes:
        """Compile C text to a shared object. Raises ToolchainError with the compiler's messages."""
        with files.temporary_folder("cc", ToolchainError) as folder:
            source, target = folder / "kernels.c", folder / "kernels.so"
            own = not set(_INCLUDE_LINE.findall(text)) - OWN_HEADERS
            helpers = '\n#include "half.h"\n' if own and "_Float16" in text else ""
            source.write_text(text + helpers, encoding="utf-8")
            argv = [*self.command, *self.flags, *flags, str(source), "-o", str(target), *self._linking(own)]
            run(argv, folder=folder, timeout_s=timeout_s, cpu_s=cpu_s)
            return read_made(target, argv, MACHINE_CODE)

    def _linking(self, own: bool) -> list[str]:
        """Return flags for headers and libraries. `own`: the text includes only the compiler's headers and ours.

        Then kernels take libc's and libm's functions from the process, and declarations from our headers. With zig that
        avoids building stubs of libc on a fresh machine (4 s and 44 MB); no libc headers need to be installed.
        """
        strip = ["-Wl,-undefined,dynamic_lookup"] if sys.platform == "darwin" else ["-s"]
        if not own:
            return [*strip, "-lm"]
        bare = ["-nostdlib", "-isystem", str(INCLUDE), *strip]
        return [*bare, "-lgcc"] if self.family == "gcc" else [*bare, "-nostdlibinc"]


def read_made(path: Path, argv: Sequence[str], begins: tuple[bytes, ...] = (b"",)) -> bytes:
    """Return a compiler's output file. Raises ToolchainError if it succeeded without making one of the right kind."""
    data = path.read_bytes() if path.is_file() else b""
    if not data or not data.startswith(begins):
        made = "something else" if data else "nothing"
        command = " ".join(shlex.quote(a) for a in argv)
        raise ToolchainError(
            f"the compiler {argv[0]} reported no error but made {made} instead of {path.name}: {command}", hint=_HINT
        )
    return data


class _RunningCompilers:
    """The compilers that one group of threads runs, to be ended together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(process)
            if self._ended:
                _kill(process)

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Kill running compilers, and each one that starts later."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)


class _Thread(threading.local):
    """The calls that this thread's compilers belong to."""

    calls: _RunningCompilers | None = None


_thread = _Thread()


class BackgroundWork(Generic[Item, Made]):
    """Background work: runs `work`, which calls compilers, on each item in other threads, from `begin` on."""

    def __init__(self, work: Callable[[Item], Made], items: Sequence[Item], jobs: int) -> None:
        self._work, self._items = work, items
        self._calls = calls = _RunningCompilers()

        def join() -> None:
            _thread.calls = calls

        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="rammer-cc", initializer=join)
        # Ctrl-C inside `concurrent.futures.wait` may leave locks held that threads then wait for; a queue has none.
        self._ended: SimpleQueue[Future[Made]] = SimpleQueue()
        self._running: dict[Future[Made], Item] = {}

    def begin(self) -> None:
        """Start, once. If a signal raises meanwhile, `end` stops the work."""
        with _signals_wait():
            for item in self._items:
                future = self._pool.submit(self._work, item)
                self._running[future] = item
                future.add_done_callback(self._ended.put)

    def results(self) -> Iterator[tuple[Item, Made]]:
        """Yield items with their results as they complete, once. The first failure, or Ctrl-C, ends the others."""
        try:
            if not self._running:
                self.begin()
            for _ in self._running:
                future = _first(self._ended)
                yield self._running[future], future.result()
        finally:
            self.end()

    def end(self) -> None:
        """Cancel waiting items and kill running compilers."""
        with _signals_wait():
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._calls.end()
            self._pool.shutdown(wait=True)


def in_parallel(work: Callable[[Item], Made], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Made]]:
    """Yield results of `work`, which calls compilers, as they complete.

    The first failure, or Ctrl-C, cancels waiting items and kills running compilers.
    """
    yield from BackgroundWork(work, items, jobs).results()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block.

    An exception inside of Python's own conditions may leave locks held that threads then wait for.
    """
    if threading.current_thread() is not threading.main_thread():  # which handles signals
        yield
        return
    came: list[int] = []
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {n: handler for n, handler in handlers.items() if handler is not None}  # None: from outside Python
    try:
        for n in ours:
            signal.signal(n, lambda number, _: came.append(number))
        yield
    finally:
        for n, handler in ours.items():
            signal.signal(n, handler)
    for number in came:
        signal.raise_signal(number)


def _first(ended: SimpleQueue[Future[Made]]) -> Future[Made]:
    while True:
        with suppress(Empty):
            return ended.get(timeout=SIGNALS_S)


def run(argv: Sequence[str], *, folder: str | Path, timeout_s: float, cpu_s: int | None = None) -> None:
    """Run a compiler without a shell, in its own process group, with a time limit. Raises ToolchainError.

    `cpu_s` limits CPU time, which does not depend on the machine's load, and also memory.
    """
    command = " ".join(shlex.quote(a) for a in argv)
    # The compiler's own caches: a global one that is kept, a local one that is deleted with the folder.
    environment = os.environ | {
        "ZIG_LOCAL_CACHE_DIR": str(folder),
        "ZIG_GLOBAL_CACHE_DIR": str(config.private_dir(config.cache_dir() / "zig")),
    }
    log, calls = Path(folder, "stderr.txt"), _thread.calls
    with log.open("wb") as stderr:
        start = time.monotonic()  # the compiler may run long before this thread continues
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolchainError(f"cannot start the C compiler {argv[0]}: {error.strerror}", hint=_HINT) from error
        try:
            if calls is not None:
                calls.add(process)
            if cpu_s is not None:
                cpu_s = _limit(process, cpu_s)
            code = _waited(process, timeout_s)
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"the C compiler took {timeout_s:g} s: {command}", hint="is it overloaded?") from None
        finally:
            if process.poll() is None:  # also on Ctrl-C
                _kill(process)
                process.wait()
            if calls is not None:
                calls.remove(process)
    if folder_of_dumps := config.get("RAMMER_DUMP_DIR"):
        _note_call(Path(folder_of_dumps), command, code, log)
    if code:
        ended = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
        hint = _LIMITS.get(-code, _FAILED)
        if cpu_s is not None and time.monotonic() - start >= TICKS * cpu_s:
            ended, hint = f"was stopped after {cpu_s} s of computing", _FAILED
        raise ToolchainError(f"the C compiler {ended}: {command}\n{_trimmed(log)}", hint=hint)


def _waited(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Return a compiler's status after its end. Raises subprocess.TimeoutExpired.

    Python's own wait with a timeout polls every 50 ms; a pidfd reports the end at once.
    """
    try:
        ended = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # macOS, or a kernel that forbids it
        return process.wait(timeout_s)
    try:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        return process.wait(timeout_s if poll.poll(timeout_s * 1000) else 0)
    finally:
        os.close(ended)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a compiler and its child processes."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)


def _limit(process: subprocess.Popen[bytes], cpu_s: int) -> int:
    """Limit the CPU time and memory of a compiler and its children, if the system can (Linux).

    Returns the limit of CPU time in seconds: that of this process, if it is lower.
    """
    if sys.platform != "linux":
        return cpu_s
    try:
        for kind, most in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, MEMORY_BYTES)):
            soft, hard = (most if now == resource.RLIM_INFINITY else min(most, now) for now in resource.getrlimit(kind))
            resource.prlimit(process.pid, kind, (soft, hard))
            cpu_s = soft if kind == resource.RLIMIT_CPU else cpu_s
    except ProcessLookupError:
        pass  # it has ended
    return cpu_s


TICKS = 0.9  # part of the CPU limit that counts as reached: systems count in whole ticks
_HINT = "install ziglang (pip install ziglang), or set RAMMER_CC to a C compiler"
_LIMITS: dict[int, str] = {
    signal.SIGXFSZ: "it may not write files as large as it needs: raise ulimit -f",
    signal.SIGXCPU: "it may not compute as long as it needs: raise ulimit -t",
    signal.SIGKILL: "was there too little memory?",
}
_FAILED = "this text was made by rammer or a plugin: please report it; RAMMER_CC tries another compiler"


def _note_call(folder: Path, command: str, code: int, log: Path) -> None:
    """Append a compiler's call and its messages to the build log."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "build.log").open("a", encoding="utf-8") as file:  # one write: compilers end at the same time
            file.write(f"$ {command}\n{_trimmed(log)}status {code}\n")
    except OSError as error:
        raise ToolchainError(f"cannot write to RAMMER_DUMP_DIR={str(folder)!r}: {error.strerror}") from error


def _trimmed(log: Path) -> str:
    with log.open("rb") as file:
        text = file.read(MAX_STDERR + 1).decode(errors="replace")
    return text if len(text) <= MAX_STDERR else text[:MAX_STDERR] + "\n… (more lines left out)"


def c_compiler() -> Compiler:
    """Return the C compiler of this process: RAMMER_CC, else ziglang's. Raises ToolchainError."""
    return _find(config.get("RAMMER_CC"))


@lru_cache(maxsize=8)
def _find(requested: str) -> Compiler:
    if not requested:
        zig = ziglang("C", _HINT)
        return Compiler((zig, "cc"), "zig", f"zig {ask((zig, 'version'), 'C', _HINT)}")
    command = named_compiler("RAMMER_CC", requested, _HINT)
    if Path(command[0]).name == "zig":
        return Compiler(command, "zig", f"zig {ask((command[0], 'version'), 'C', _HINT)}")
    version = ask((*command, "--version"), "C", _HINT)
    family = "clang" if "clang" in version else "gcc"
    return Compiler(command, family, version.splitlines()[0] if version else "unknown")


def ziglang(language: str, hint: str) -> str:
    """Return the path of the package ziglang's compiler of several languages. Raises ToolchainError."""
    package = importlib.util.find_spec("ziglang")
    zig = Path(package.origin).with_name("zig") if package and package.origin else None
    if zig is None or not zig.exists():
        raise ToolchainError(f"no {language} compiler: the package ziglang is not installed", hint=hint)
    return str(zig)


def named_compiler(flag: str, value: str, hint: str) -> tuple[str, ...]:
    """Return the command in a flag's value. Raises ToolchainError if there is no such program."""
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ToolchainError(f"{flag}={value!r}: {error}", hint=hint) from error
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise ToolchainError(f"{flag}={value!r}: no such program", hint=hint)
    return program, *words[1:]


def ask(argv: Sequence[str], language: str, hint: str) -> str:
    """Return what a compiler prints, such as its version. Raises ToolchainError."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"the {language} compiler {argv[0]} does not answer: {error}", hint=hint) from error
    return done.stdout.decode(errors="replace").strip()


def parallel_jobs() -> int:
    """Return the number of compilers to run at once: one per usable CPU, if memory allows (about 1 GB each)."""
    return max(1, min(usable_cpus(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30))


def fingerprint(*parts: str) -> str:
    """Return a hash of texts, for cache keys."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def headers_fingerprint() -> str:
    """Return a hash of our headers, for cache keys."""
    return fingerprint(*(p.read_text(encoding="utf-8") for p in sorted(INCLUDE.glob("*.h"))))


def object_store() -> ObjectStore:
    """Return the cache of compiled kernels."""
    return ObjectStore(config.private_dir(config.cache_dir() / "objects"))


def describe() -> str:
    """Return a description of the C compiler for users. Never raises."""
    try:
        compiler = c_compiler()
    except ToolchainError as error:
        return str(error)
    return f"{compiler.version} ({' '.join(compiler.command)})"


def cache_summary() -> dict[str, Any]:
    """Return the cache's folder and the sizes of its contents."""
    root = config.cache_dir()
    kernels, objects, _ = object_store().stats()
    nbytes = sum(f.stat().st_size for f in root.rglob("*") if f.is_file())
    return {"folder": str(root), "kernels": kernels, "objects": objects, "bytes": nbytes}


def clear_cache() -> None:
    """Delete compiled kernels and measured times, and nothing else in the folder."""
    root = config.cache_dir()
    for entry in (root / "objects", root / "zig"):
        shutil.rmtree(entry, ignore_errors=True)
    for entry in root.glob("*.sqlite*"):
        entry.unlink(missing_ok=True)
