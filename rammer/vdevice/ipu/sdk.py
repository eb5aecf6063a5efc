"""Run the compilers: Poplar's SDK if present, and a host C++ compiler for the emulator."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rammer.errors import DeviceError, ToolchainError
from rammer.files import temporary_folder
from rammer.vdevice.ipu.spec import IpuModel
from rammer.vdevice.toolchain import (
    CLANG_REPAIR,
    MACHINE_CODE,
    ask,
    c_compiler,
    fingerprint,
    object_store,
    read_made,
    run,
)

HERE = Path(__file__).parent
INCLUDE = HERE / "emulator" / "include"
HOST = HERE / "host.cpp"
EMULATOR_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w", "-ffp-contract=fast")
SDK_HINT = "source <sdk>/poplar-*/enable.sh, or compile for device='emulator'"


@dataclass(frozen=True, slots=True)
class Sdk:
    """An installed Poplar SDK."""

    popc: str
    root: Path | None

    def commands(self, arch: IpuModel, folder: str = ".") -> list[list[str]]:
        """Return the commands that build a program: codelets, then the host program as a shared library."""
        own = [f"-I{self.root}/include", f"-L{self.root}/lib"] if self.root else []
        codelets = ["--target", f"cpu,{arch.model.version}", f"{folder}/codelets.cpp", "-o", f"{folder}/codelets.gp"]
        shared = ["-std=c++17", "-O2", "-fPIC", "-shared", f"{folder}/host.cpp", *own]
        return [[self.popc, "-O3", *codelets], ["g++", *shared, "-lpoplar", "-o", f"{folder}/host.so"]]


def find_sdk() -> Sdk | None:
    """Return the SDK named by the environment, or whose popc is on PATH; else None."""
    for name in ("POPLAR_SDK_ENABLED", "POPLAR_SDK"):
        if root := os.environ.get(name):
            for popc in (Path(root, "bin", "popc"), *sorted(Path(root).glob("poplar-*/bin/popc"))):
                if popc.exists():
                    return Sdk(str(popc), popc.parent.parent)
    if popc_on_path := shutil.which("popc"):
        return Sdk(popc_on_path, None)
    return None


def require_sdk(arch: IpuModel) -> Sdk:
    """Return the SDK. Raises DeviceError with a hint."""
    if (sdk := find_sdk()) is None:
        raise DeviceError(
            f"no Poplar SDK for {arch.model.name}: POPLAR_SDK_ENABLED and POPLAR_SDK are unset or hold no bin/popc, "
            "and popc is not on PATH",
            hint=SDK_HINT,
        )
    return sdk


def build_with_sdk(sdk: Sdk, arch: IpuModel, files: dict[str, str]) -> dict[str, bytes]:
    """Compile codelets and host program. Raises ToolchainError with the compilers' log."""
    with temporary_folder("ipu", ToolchainError) as folder:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        for command in sdk.commands(arch, str(folder)):
            run(command, folder=folder, timeout_s=600)
        return {name: read_made(folder / name, [sdk.popc]) for name in ("codelets.gp", "host.so")}


@lru_cache(maxsize=1)
def host_cxx() -> tuple[str, ...]:
    """Return a C++17 compiler of this machine: CXX, g++, clang++, or ziglang's. Raises ToolchainError."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        words = shlex.split(name)
        if words and (found := shutil.which(words[0])):
            return (found, *words[1:])
    compiler = c_compiler()
    if compiler.family == "zig":
        return (compiler.command[0], "c++", *CLANG_REPAIR)  # zig compiles for this very machine by default
    raise ToolchainError("no C++ compiler for the IPU emulator", hint="install g++, or set CXX")


@lru_cache(maxsize=1)
def _host_version() -> str:
    """Return the C++ compiler's version text: part of the cache's key, as the same name may mean another compiler."""
    return ask((*host_cxx(), "--version"), "C++", "install g++, or set CXX")


def build_emulated(files: dict[str, str]) -> bytes:
    """Build host program and codelets over the emulator, as one shared library. Raises ToolchainError."""
    host = compile_emulated({"host.cpp": HOST.read_text(encoding="utf-8")}, "host.cpp", ("-c",))
    return compile_emulated(files, "codelets_emulated.cpp", ("-shared",), host)


def compile_emulated(files: dict[str, str], main: str, mode: Sequence[str], linked: bytes = b"") -> bytes:
    """Compile `main`, and link an object with it; results are cached by content."""
    argv = [*host_cxx(), *EMULATOR_FLAGS, *mode]
    own = platform.machine(), _host_version(), *argv
    key = fingerprint(*own, *files.values(), _headers(), linked.hex() if linked else "")
    return object_store().made(key, lambda: _emulated(argv, files, main, linked))


def _emulated(argv: Sequence[str], files: dict[str, str], main: str, linked: bytes) -> bytes:
    with temporary_folder("ipu", ToolchainError) as folder:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        objects = []
        if linked:
            (folder / "linked.o").write_bytes(linked)
            objects.append(str(folder / "linked.o"))
        target = folder / "made.bin"
        command = [*argv, "-I", str(INCLUDE), "-I", str(folder), str(folder / main), *objects, "-o", str(target)]
        run(command, folder=folder, timeout_s=300)
        return read_made(target, command, MACHINE_CODE)


@lru_cache(maxsize=1)
def _headers() -> str:
    return fingerprint(*(p.read_text(encoding="utf-8") for p in sorted(INCLUDE.rglob("*.hpp"))))
