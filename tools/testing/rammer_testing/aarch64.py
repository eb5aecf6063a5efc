"""Run tests in an aarch64 Python on another Linux machine, by qemu-user.

python -m rammer_testing.aarch64 FOLDER [--qemu qemu-aarch64] [-- tests/vdevice/test_cpu_call.py …]

The first run makes FOLDER: Debian's aarch64 Python, wheels of what rammer and its tests need, and a package `ziglang`
that calls this machine's zig with aarch64 as its target. `FOLDER/bin/python` runs all of it; arguments after `--` go to
its pytest. Needs Debian's apt-get and dpkg, and QEMU from version 8 on: in a forked child, earlier ones start no
threads.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rammer.errors import ToolchainError
from rammer.vdevice.toolchain import ziglang

DEBIAN = ("python3", "libstdc++6", "libgomp1")
WHEELS = (
    *("numpy", "networkx", "pluggy", "onnx", "ml_dtypes", "click", "rich"),
    *("pytest", "pytest-xdist", "hypothesis", "onnxruntime", "safetensors"),
)
CHECKOUT = (".", "tools/testing", "plugins/torch", "plugins/dask")
GLIBC = (28, 27, 17)  # manylinux tags of wheels
FLAGS = ("divide by zero", "overflow", "invalid value")  # that QEMU sets in vectors, and NumPy finds
NATIVE = re.compile(
    r"(cc|c99|c89|gcc|g\+\+|c\+\+|cpp)(-\d+)?|clang.*|as|ld.*|objdump|valgrind|python.*|pytest|cmake|.*-linux-gnu-.*"
)
# A forked child of a process with threads starts a thread of its own.
FORKS = """
import os, threading
beside = threading.Thread(target=threading.Event().wait, args=(2,), daemon=True)
beside.start()
child = os.fork()
if child == 0:
    inner = threading.Thread(target=int)
    inner.start()
    inner.join()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
# For programs that tests compile: Linux itself starts no program of another machine. 183 is aarch64.
STARTS = """
import os, shutil, subprocess

class Popen(subprocess.Popen):
    def __init__(self, args, *more, **options):
        words = [args] if isinstance(args, (str, os.PathLike)) else [*args]
        path = shutil.which(words[0])
        with open(path or os.devnull, "rb") as file:
            head = file.read(20)
        if head[:4] == b"\\x7fELF" and head[18] == 183 and not options.get("shell"):
            args = [*{launch!r}, *words]
        super().__init__(args, *more, **options)

subprocess.Popen = Popen
"""


def make(folder: Path, qemu: str) -> None:
    """Make the environment in a folder. Raises ToolchainError for a QEMU that cannot run it."""
    root = folder / "root"
    _unpack(folder, root)
    python = max((root / "usr/bin").glob("python3.[0-9]*"), key=lambda path: int(path.name.rpartition(".")[2]))
    site = folder / "lib" / python.name / "site-packages"
    version = python.name.removeprefix("python")
    tags = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC]
    abi = ("--implementation=cp", f"--python-version={version}", f"--abi=cp{version.replace('.', '')}")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--upgrade")
    subprocess.run([*pip, *tags, *abi, f"--target={site}", *WHEELS], check=True)
    (site / "ziglang").mkdir(exist_ok=True)
    (site / "ziglang/__init__.py").touch()
    (site / "ziglang/__main__.py").write_text(
        "import os, sys\nos.execv(os.path.join(os.path.dirname(__file__), 'zig'), ['zig', *sys.argv[1:]])\n"
    )
    zig = shlex.quote(ziglang("C", "pip install ziglang"))
    target = f"aarch64-linux-gnu.{_glibc(root)}"
    _script(
        site / "ziglang/zig",
        f'case $1 in cc|c++) tool=$1; shift; exec {zig} "$tool" -target {target} "$@";; esac',
        f'exec {zig} "$@"',
    )
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    for path in (Path(at) for at in os.get_exec_path() if Path(at).is_dir()):
        _link_tools(path, folder / "tools")
    launch = (qemu, "-L", str(root))
    (site / "starts.py").write_text(STARTS.format(launch=launch))
    (site / "starts.pth").write_text("import starts\n")
    _script(folder / "bin/python", f'exec {shlex.join(launch)} -0 "$0" {shlex.quote(str(python))} "$@"')
    if subprocess.run([folder / "bin/python", "-c", FORKS], check=False).returncode:
        (folder / "bin/python").unlink()
        raise ToolchainError(
            f"{qemu} starts no thread in a forked child", hint="QEMU 8 or later: --qemu, or Debian's backports"
        )


def _unpack(folder: Path, root: Path) -> None:
    """Unpack Debian's packages for aarch64, by lists of packages of its own: the system's stay as they are."""
    lists = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (lists / name).mkdir(parents=True, exist_ok=True)
    (lists / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::State": f"{lists}/state",
        "Dir::State::status": f"{lists}/status",
        "Dir::Cache": f"{lists}/cache",
    }
    apt = ("apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")))
    subprocess.run([*apt, "-qq", "update"], check=True)
    wanted = [*apt, "install", "--print-uris", "--no-install-recommends", "-qq", *DEBIAN]
    listed = subprocess.run(wanted, check=True, capture_output=True, text=True).stdout.splitlines()
    names = [line.split()[1].partition("_")[0] for line in listed if line.startswith("'")]
    subprocess.run([*apt, "-qq", "download", *names], check=True, cwd=lists / "packages")
    for package in (lists / "packages").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)


def _link_tools(source: Path, target: Path) -> None:
    """Link this machine's programs into a folder, without compilers of C, which make code for another machine."""
    target.mkdir(exist_ok=True)
    for program in source.iterdir():
        link = target / program.name
        if not NATIVE.fullmatch(program.name) and not os.path.lexists(link):
            link.symlink_to(program)


def _glibc(root: Path) -> str:
    """Return the version of the unpacked libc."""
    said = re.search(rb"stable release version (\d+\.\d+)", (root / "lib/aarch64-linux-gnu/libc.so.6").read_bytes())
    assert said
    return said[1].decode()


def _script(path: Path, *lines: str) -> None:
    """Write a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def pytest(folder: Path, arguments: Sequence[str]) -> int:
    """Run the environment's pytest in this folder, and return its status."""
    paths = {"PATH": folder.absolute() / "tools", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, CHECKOUT))}
    environment = os.environ | {name: str(path) for name, path in paths.items()}
    environment.pop("RAMMER_CC", None)
    own = ["-p", "no:cacheprovider", "-n", "0"]
    own += [f"-Wignore:{flag} encountered in matmul:RuntimeWarning" for flag in FLAGS]
    command = [folder.absolute() / "bin/python", "-m", "pytest", *own, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> None:
    """Make the environment if it is missing, then run pytest."""
    end = [*sys.argv, "--"].index("--")  # argparse itself refuses `FOLDER --qemu PATH -- …`
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="Arguments after `--` go to pytest."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--qemu", default="qemu-aarch64")
    given = parser.parse_args(sys.argv[1:end])
    if not (given.folder / "bin/python").exists():
        make(given.folder.absolute(), given.qemu)
    if arguments := sys.argv[end + 1 :]:
        raise SystemExit(pytest(given.folder, arguments))


if __name__ == "__main__":
    main()
