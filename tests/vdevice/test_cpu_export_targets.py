"""Exported projects on other systems: compiled by zig, and run where an emulator or a browser is here.

docs/targets.md has a row for each. Node and Chromium: test_cpu_export_examples.py.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import wine
from exports import build, compile_only, compiled

import rammer
from rammer.vdevice.cpu.host import find_arch, host
from rammer.vdevice.toolchain import c_compiler

ROOT = Path(__file__).parents[2]
BARE = Path(__file__).with_name("bare")


def by(*words: str) -> Callable[[Path], None]:
    """Return a check that runs the self-check by a program, and is skipped where that is missing."""

    def run(path: Path) -> None:
        if words and shutil.which(words[0]) is None:
            pytest.skip(f"no {words[0]} here")
        subprocess.run([*words, path], check=True, timeout=600, stdin=subprocess.DEVNULL)

    return run


def by_wine(path: Path) -> None:
    wine.run(path).check_returncode()


def by_wasmtime(path: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime")
    engine = wasmtime.Engine()
    linker, store, config = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    config.argv = ["check"]
    store.set_wasi(config)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, str(path)))
    try:
        instance.exports(store)["_start"](store)
    except wasmtime.ExitTrap as ended:
        assert ended.code == 0


def with_old_glibc(path: Path) -> None:
    """It asks for no symbol of a later glibc than 2.17, and runs."""
    versions = [int(v) for v in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    assert versions and max(versions) <= 17
    by()(path)


def as_mach_o(path: Path) -> None:
    """It loads the system's library alone, and has a main program; nothing here runs it."""
    data = path.read_bytes()
    magic, _, _, kind, count = struct.unpack_from("<5I", data)
    assert (magic, kind) == (0xFEEDFACF, 2)  # 64 bits, an executable
    commands, at = dict[int, list[int]](), 32
    for _ in range(count):
        command, nbytes = struct.unpack_from("<2I", data, at)
        commands.setdefault(command, []).append(at)
        at += nbytes
    main, load = 0x80000028, 0xC
    assert len(commands[main]) == 1
    loaded = [data[at + struct.unpack_from("<I", data, at + 8)[0] :].split(b"\0")[0] for at in commands[load]]
    assert loaded == [b"/usr/lib/libSystem.B.dylib"]
    symbols, number, strings, _ = struct.unpack_from("<4I", data, commands[0x2][0] + 8)
    entries = [struct.unpack_from("<IBBHQ", data, symbols + 16 * n) for n in range(number)]
    undefined = {data[strings + e[0] :].split(b"\0")[0] for e in entries if e[1] & 0xE == 0 and e[1] & 1}
    assert {b"_pthread_create", b"_mmap"} <= undefined and not any(b"rammer" in name for name in undefined)


class Target(NamedTuple):
    """A system to compile for: zig's name of it, the arch, flags to link with, and what runs or checks the result."""

    zig: str
    arch: str
    link: tuple[str, ...]
    check: Callable[[Path], None]
    suffix: str = ""
    flags: tuple[str, ...] = ()


BARE_FLAGS = (
    *("-mcpu=cortex_m4+vfp4d16sp", "-ffreestanding", "-fno-pic", "-fno-sanitize=all", "-ffunction-sections"),
    *("-DRAMMER_CHECK_MEMORY=1048576", f"-I{BARE}"),
)
BARE_LINK = (str(BARE / "start.c"), f"-Wl,-T,{BARE}/board.ld", "-Wl,--gc-sections")
QEMU_BOARD = ("qemu-system-arm", "-M", "mps2-an386", "-nographic", "-semihosting", "-kernel")
TARGETS: Mapping[str, Target] = {
    "linux-x86-64-glibc-2.17": Target("x86_64-linux-gnu.2.17", "x86-64", ("-lm", "-lpthread"), with_old_glibc),
    "linux-x86-64-musl": Target("x86_64-linux-musl", "x86-64", ("-lm",), by()),
    "linux-aarch64": Target("aarch64-linux-musl", "aarch64-neon", ("-lm", "-static"), by("qemu-aarch64")),
    "linux-riscv64": Target("riscv64-linux-musl", "riscv64", ("-lm", "-static"), by("qemu-riscv64")),
    "windows-x86-64": Target("x86_64-windows-gnu", "x86-64", ("-lntdll",), by_wine, ".exe"),
    "wasm32-wasi": Target("wasm32-wasi", "wasm32-simd128", (), by_wasmtime, ".wasm"),
    "cortex-m4f": Target("thumb-freestanding-eabihf", "cortex-m4f", BARE_LINK, by(*QEMU_BOARD), ".elf", BARE_FLAGS),
    "macos-x86-64": Target("x86_64-macos", "x86-64", (), as_mach_o),
    "macos-aarch64": Target("aarch64-macos", "aarch64-neon", (), as_mach_o),
}
HERE = [name for name in TARGETS if host().machine == "x86_64" or "linux-x86-64" not in name]
QUICK = ("linux-x86-64-glibc-2.17", "cortex-m4f")  # for others zig builds a libc, which takes minutes with empty caches


def flags_for(target: Target, folder: Path) -> tuple[str, ...]:
    if c_compiler().family != "zig":
        pytest.skip("only zig compiles for other systems")
    return ("-target", target.zig, *target.flags, *(("-isystem", f"{folder}/src/bare") if target.flags else ()))


def made_for(target: Target, folder: Path, where: Path) -> Path:
    """Compile a project's self-check for a target."""
    return build(folder, where / f"check{target.suffix}", *target.link, flags=flags_for(target, folder))


def exported(target: Target, where: Path) -> Path:
    """Export a voice detector for a target."""
    threads = find_arch(target.arch).machine not in ("wasm32", "thumb")
    compiled(arch=target.arch, device=1 + threads, tune_seconds=0).export(where / "project", name="detector")
    return where / "project"


@pytest.mark.parametrize("name", HERE)
def test_all_files_compile_for_it(name: str, tmp_path: Path) -> None:
    folder = exported(TARGETS[name], tmp_path)
    compile_only(folder, tmp_path / "objects", (folder / "main.c",), flags_for(TARGETS[name], folder), c_compiler())


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in HERE])
def test_a_voice_detector_runs_there(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    target.check(made_for(target, exported(target, tmp_path), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["today_gru4rec", "today_mobilenet_v2"])
@pytest.mark.parametrize("name", HERE)
def test_real_models_run_there(name: str, model: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.models.catalog import prepare

    target = TARGETS[name]
    program = rammer.compile(prepare(model, 1, "small").built.path, device=1, arch=target.arch, tune_seconds=0)
    program.export(tmp_path / "project", name="network")
    target.check(made_for(target, tmp_path / "project", tmp_path))


def test_the_page_of_targets_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| .* \| (?:run|built).* \|$", (ROOT / "docs/targets.md").read_text(), re.M)
    assert rows == [*TARGETS, "node", "chromium", "cuda", "rocm"]
