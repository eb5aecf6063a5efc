"""The C compiler and the cache of compiled kernels."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx
import pytest

import rammer
from rammer import config
from rammer.errors import DeviceError, ModelError, RammerError, ToolchainError
from rammer.vdevice import toolchain
from rammer.vdevice.cpu.codegen.compile import LIBRARIES, KernelCompiler
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import host
from rammer.vdevice.cpu.runtime.executable import Library
from rammer.vdevice.toolchain.objects import ObjectStore, share
from rammer_viz.demo import lstm_stack

TWICE = "#include <math.h>\n#include <stdint.h>\nfloat twice(float x) { return (float)INT32_C(2) * floorf(x); }\n"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with config.override(RAMMER_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def compilers() -> list[str]:
    return ["", *(c for c in ("gcc", "clang") if shutil.which(c))]


@pytest.mark.parametrize("command", compilers(), ids=lambda c: c or "ziglang")
def test_compiles_without_libc(cache: Path, command: str) -> None:
    with config.override(RAMMER_CC=command):
        compiler = toolchain.c_compiler()
        library = Library(compiler.compile_shared(TWICE))
    assert compiler.version
    assert library.function("twice", ctypes.c_float, ctypes.c_float)(2.5) == 4
    assert not list((cache / "zig").glob("o/*")), "zig built libc stubs"


@pytest.mark.slow
def test_other_headers_bring_libc(cache: Path) -> None:
    data = toolchain.c_compiler().compile_shared("#include <stdlib.h>\nint f(int x) { return abs(x); }")
    assert Library(data).function("f", ctypes.c_int, ctypes.c_int)(-3) == 3


def test_errors_carry_the_compilers_words_but_not_all_of_them(cache: Path) -> None:
    with pytest.raises(ToolchainError, match=r"(?s)failed with status 1.*oops") as caught:
        toolchain.c_compiler().compile_shared("int f(void) { return oops; }\n")
    assert caught.value.hint
    with pytest.raises(ToolchainError) as caught:
        toolchain.c_compiler().compile_shared("".join(f"int f{n}(void) {{ return oops{n}; }}\n" for n in range(2000)))
    assert len(str(caught.value)) < toolchain.MAX_STDERR + 2000


@pytest.mark.parametrize("command", ["/no/such/cc", "'", "no-such-cc -O9"])
def test_a_missing_compiler_is_named(cache: Path, command: str) -> None:
    with config.override(RAMMER_CC=command), pytest.raises(ToolchainError, match="RAMMER_CC") as caught:
        toolchain.c_compiler()
    assert "ziglang" in caught.value.hint
    with config.override(RAMMER_CC=command):
        assert "RAMMER_CC" in toolchain.describe()


def test_a_compiler_that_hangs_is_killed_with_its_children(cache: Path, tmp_path: Path) -> None:
    script = tmp_path / "cc"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo slow cc\nsleep 60 & echo $! > {tmp_path}/pid; wait\n'
    )
    script.chmod(0o755)
    with config.override(RAMMER_CC=str(script)):
        compiler = toolchain.c_compiler()
    with pytest.raises(ToolchainError, match=r"took 0\.5 s"):
        compiler.compile_shared(TWICE, timeout_s=0.5)
    child = int((tmp_path / "pid").read_text())
    assert ended(child), "the compiler's child still runs"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the time of another process")
def test_a_compiler_that_computed_before_its_caller_ran_again_was_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a compiler may have had its second before its parent looks at a clock."""
    start = subprocess.Popen

    def started_late(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **kwargs)
        time.sleep(1.5)
        return process

    monkeypatch.setattr(toolchain.subprocess, "Popen", started_late)
    with pytest.raises(ToolchainError, match="was stopped after 1 s of computing"):
        toolchain.run(["/bin/sh", "-c", "while :; do :; done"], folder=tmp_path, timeout_s=30, cpu_s=1)


SLOW_CC = """#!/bin/sh
[ "$1" = --version ] && exec echo slow cc
sleep 600 & echo $! >> {pids}; wait
"""


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Heeded, here and in processes that are begun here: what a shell without a terminal runs beside it ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_ends_the_compilers_too(cache: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle of a compilation, with one line and the shell's status; no compiler goes on."""
    script, pids = tmp_path / "cc", tmp_path / "pids"
    script.write_text(SLOW_CC.format(pids=pids))
    script.chmod(0o755)
    onnx.save(lstm_stack(1, 4, 16), tmp_path / "m.onnx")
    # As the installed command: `python -m` ends by the signal itself if that came inside of `exec`, as of dataclasses.
    start = [sys.executable, "-c", "from rammer.__main__ import main; main()"]
    command = [*start, "compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.rammer")]
    environment = os.environ | {"RAMMER_CC": str(script), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
    try:
        while not (pids.exists() and pids.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + number
    assert said == ("interrupted\n" if number is signal.SIGINT else "")
    for pid in pids.read_text().split():
        assert ended(int(pid)), "a compiler still runs"
    assert (
        not (tmp_path / "m.rammer").exists() and not list(tmp_path.glob("rammer-*")) and not list(tmp_path.glob(".*"))
    )
    assert not list((cache / "objects").glob("*.so")) and not list((cache / "objects").glob(".*"))


UNHEARD = """
import os, signal, time, weakref
import click
from rammer.cli.console import CommandGroup

@click.group(cls=CommandGroup)
def main(): pass

class Thing: pass

class Named:
    def __set_name__(self, owner, name): told()

def told(*_): os.kill(os.getpid(), {number})

@main.command
def dropped():
    thing = Thing()
    kept = weakref.ref(thing, told)
    del thing
    time.sleep(30)

@main.command
def replaced():
    class Owner: named = Named()

main()
"""


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("how", ["dropped", "replaced"])
def test_a_signal_that_python_drops_or_replaces_ends_the_command(how: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", UNHEARD.format(number=int(number)), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "interrupted\n" if number is signal.SIGINT else "")


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_while_compilers_are_started_comes_afterwards(cache: Path, tmp_path: Path) -> None:
    """At whatever line: all threads end, and the handler is there again."""

    def work(item: int) -> None:
        if item == 3:
            os.kill(os.getpid(), signal.SIGINT)
        toolchain.run(["sleep", "600"], folder=tmp_path, timeout_s=300)

    before = signal.getsignal(signal.SIGINT)
    for _ in range(30):
        with pytest.raises(KeyboardInterrupt):
            list(toolchain.in_parallel(work, range(200), 6))
        assert signal.getsignal(signal.SIGINT) is before
        assert not [t for t in threading.enumerate() if t.name.startswith("rammer-cc")]


def test_the_first_failure_ends_the_other_compilers(cache: Path, tmp_path: Path) -> None:
    """Also one that starts just then: none of those that are in the way may be waited for."""
    calls = iter(["false", "sleep 600", "sleep 600"])

    def work(item: int) -> None:
        toolchain.run(["sh", "-c", next(calls)], folder=tmp_path, timeout_s=300)

    with pytest.raises(ToolchainError, match="failed with status 1"):
        list(toolchain.in_parallel(work, range(20), 3))
    toolchain.run(["true"], folder=tmp_path, timeout_s=60)  # other calls go on


def test_what_was_begun_beside_is_used_or_ends_with_the_device(cache: Path) -> None:
    def running() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith("rammer-cc")]

    device = CpuVDevice()
    device.begin()
    assert running()
    device.close()
    assert not running()
    with pytest.raises(ModelError):
        rammer.compile(b"no model", "cpu")
    assert not running()
    compiler = KernelCompiler(device.spec, host())
    compiler.begin()
    assert compiler.runtime() == KernelCompiler(device.spec, host()).runtime()
    assert not running() and len(list((cache / "objects").glob("*.so"))) == len(LIBRARIES)


@pytest.mark.parametrize(
    ("made", "text"), [(":", "made nothing"), (": > $out", "made nothing"), ("echo x > $out", "made something else")]
)
def test_a_compiler_that_makes_no_object_is_named(cache: Path, tmp_path: Path, made: str, text: str) -> None:
    script = tmp_path / "cc"
    head = '#!/bin/sh\n[ "$1" = --version ] && exec echo odd cc\nfor out; do case $out in *.so) break; esac; done\n'
    script.write_text(f"{head}{made}\n")
    script.chmod(0o755)
    with config.override(RAMMER_CC=str(script)), pytest.raises(ToolchainError, match=text) as caught:
        toolchain.c_compiler().compile_shared(TWICE)
    assert str(script) in caught.value.what


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG], ids=["full disk", "ulimit -f"])
def test_no_room_for_temporary_files(cache: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    data = toolchain.c_compiler().compile_shared(TWICE)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ToolchainError, match=os.strerror(code)) as caught:
        toolchain.c_compiler().compile_shared(TWICE)
    assert "TMPDIR" in caught.value.hint
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DeviceError, match=os.strerror(code)):
        Library(data)


@pytest.mark.skipif(sys.platform == "darwin", reason="files are limited by RLIMIT_FSIZE in other ways there")
def test_a_limit_on_files_is_an_error_with_a_hint(cache: Path, tmp_path: Path) -> None:
    """As set by ulimit -f: SIGXFSZ for the compiler, EFBIG for us."""
    onnx.save(lstm_stack(1, 4, 16), tmp_path / "m.onnx")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [sys.executable, "-m", "rammer", "run", str(tmp_path / "m.onnx")]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "error:" in done.stderr and "Traceback" not in done.stderr, done.stderr


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be; killing takes a moment."""
    for _ in range(100):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if not state or state.startswith("Z"):
            return True
    return False


def test_text_is_never_seen_by_a_shell(cache: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ToolchainError):
        toolchain.c_compiler().compile_shared(TWICE, [f"$(touch {mark})", f"; touch {mark}"])
    assert not mark.exists()


class TestFolders:
    def test_the_cache_is_private(self, cache: Path) -> None:
        assert stat.S_IMODE(config.cache_dir().stat().st_mode) == 0o700

    def test_a_folder_others_can_write_to_is_refused(self, cache: Path) -> None:
        cache.mkdir()
        cache.chmod(0o777)
        with pytest.raises(RammerError, match="other users may write"):
            toolchain.object_store()

    def test_a_folder_that_cannot_be_made_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with (
            config.override(RAMMER_CACHE_DIR=str(tmp_path / "file" / "sub")),
            pytest.raises(RammerError, match="cannot"),
        ):
            config.cache_dir()

    def test_a_read_only_folder_that_was_named_is_an_error(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config.cache_dir()
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to any folder
        with pytest.raises(RammerError, match="is read-only"):
            config.cache_dir()

    def test_clearing_spares_files_of_others(self, cache: Path) -> None:
        store = toolchain.object_store()
        store.add(["k"], b"code")
        (cache / "diary.txt").write_text("mine")
        assert toolchain.cache_summary().items() >= {"kernels": 1, "objects": 1}.items()
        toolchain.clear_cache()
        assert toolchain.cache_summary().items() >= {"kernels": 0, "objects": 0}.items()
        assert (cache / "diary.txt").exists()


class TestObjectStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return ObjectStore(tmp_path)

    def test_finds_what_was_added(self, store: ObjectStore) -> None:
        name = store.add(["a", "b"], b"code")
        assert store.find(["a", "b", "c"]) == {"a": name, "b": name}
        assert store.read(name) == b"code"
        assert store.stats() == (2, 1, 4)
        assert len(store.find(str(n) for n in range(2000))) == 0

    def test_damaged_and_missing_objects_are_misses(self, store: ObjectStore, tmp_path: Path) -> None:
        name = store.add(["a"], b"code")
        (tmp_path / f"{name}.so").write_bytes(b"cod")
        assert store.find(["a"]) == {}
        (tmp_path / f"{name}.so").unlink()
        assert store.find(["a"]) == {}
        store.add(["a"], b"code")
        assert store.find(["a"]) == {"a": name}

    @pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"SQLite format 3\0" + bytes(5000)])
    def test_a_damaged_index_is_made_anew(self, store: ObjectStore, tmp_path: Path, rubbish: bytes) -> None:
        store.add(["a"], b"code")
        (tmp_path / "index.sqlite").write_bytes(rubbish)
        with pytest.warns(RuntimeWarning, match="was damaged") if rubbish else nullcontext():
            assert store.find(["a"]) == {}
        name = store.add(["a"], b"code")
        assert store.find(["a"]) == {"a": name}

    def test_an_index_of_an_older_form_is_begun_anew(self, store: ObjectStore, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "index.sqlite") as other:
            other.execute("CREATE TABLE kernels (x)")
        other.close()
        assert store.find(["a"]) == {}
        name = store.add(["a"], b"code")
        assert store.find(["a"]) == {"a": name}

    def test_processes_write_at_the_same_time(self, store: ObjectStore, tmp_path: Path) -> None:
        script = f"""
import sys
from pathlib import Path
from rammer.vdevice.toolchain.objects import ObjectStore
store = ObjectStore(Path({str(tmp_path)!r}))
for n in range(25):
    store.add([f"{{sys.argv[1]}}-{{n}}", f"shared-{{n}}"], b"code %d" % n)
"""
        workers = [subprocess.Popen([sys.executable, "-c", script, str(n)]) for n in range(3)]
        assert [w.wait(60) for w in workers] == [0, 0, 0]
        assert len(store.find(f"{w}-{n}" for w in range(3) for n in range(25))) == 75
        assert store.stats()[:2] == (100, 25)
        assert not list(tmp_path.glob("new-*"))


def test_shares_are_even_and_keep_order() -> None:
    costs = {f"k{n}": n % 5 + 1 for n in range(20)}
    groups = share(costs, 3)
    assert sorted(k for g in groups for k in g) == sorted(costs)
    loads = [sum(costs[k] for k in g) for g in groups]
    assert max(loads) - min(loads) <= 5
    order = list(costs)
    assert all(g == sorted(g, key=order.index) for g in groups)
    assert share({"a": 1}, 5) == [["a"]]
    assert share({}, 5) == []


def test_the_environment_of_the_compiler_is_ours(cache: Path) -> None:
    """Nothing is written outside of the cache and the temporary folder."""
    home = cache.parent / "home"
    home.mkdir()
    script = f"from rammer.vdevice import toolchain; toolchain.c_compiler().compile_shared({TWICE!r})"
    environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
    assert not list(home.iterdir())
