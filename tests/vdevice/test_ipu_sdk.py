"""The path through Poplar's SDK, with stand-ins: a popc that copies, a g++ that takes the emulator for the SDK."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import rammer
from rammer.errors import DeviceError, ToolchainError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.plugins import PluginRegistry
from rammer.vdevice.ipu.codegen.build import emit
from rammer.vdevice.ipu.hardware import find_hardware
from rammer.vdevice.ipu.plugin import probe
from rammer.vdevice.ipu.sdk import INCLUDE, find_sdk, host_cxx
from rammer.vdevice.ipu.spec import parse_arch

ARCH = "gc200:4"
POPC = """#!/bin/sh
echo "popc $*" >> {log}
while [ $# -gt 1 ]; do case "$1" in -o) out="$2";; *.cpp) source="$1";; esac; shift; done
cp "$source" "$out"
"""
GXX = """#!/bin/sh
echo "g++ $*" >> {log}
for word; do case "$word" in */host.cpp) folder="$(dirname "$word")";; esac; done
exec {gxx} -w -I "$folder" "$@" {registrations}
"""


def model() -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", (4, 8))
    y = builder.add("matmul", x, builder.constant(np.arange(64, dtype=np.float32).reshape(8, 8)))
    builder.output(builder.add("relu", y))
    return builder.build()


@pytest.fixture
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POPLAR_SDK", "POPLAR_SDK_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SDK whose headers are the emulator's. The codelets' field tables, which popc would make, come with its g++."""
    with suppress(ToolchainError):
        host_cxx()  # the emulator's compiler is kept: it must not be the stand-in
    root, log, registrations = tmp_path / "poplar-0.0", tmp_path / "log.txt", tmp_path / "registrations.cpp"
    executable(root / "bin" / "popc", POPC.format(log=log))
    executable(tmp_path / "path" / "g++", GXX.format(log=log, gxx=shutil.which("g++"), registrations=registrations))
    (root / "include").symlink_to(INCLUDE)
    (root / "lib").mkdir()
    (root / "lib" / "libpoplar.a").write_bytes(b"!<arch>\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("POPLAR_SDK_ENABLED", str(root))
    monkeypatch.setitem(sys.modules, "poptorch", None)
    return log


@pytest.fixture
def compiler(sdk: Path) -> None:
    """The field tables that popc would make of the model's codelets, where the stand-in for g++ looks for them."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    with rammer.compile(model(), "ipu", device="emulator", arch=ARCH) as program:
        _, texts = emit(program.plan, parse_arch(ARCH))
    sdk.with_name("registrations.cpp").write_text(texts["codelets_emulated.cpp"])


Poptorch = Callable[..., None]


@pytest.fixture
def poptorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Poptorch:
    def pretend(body: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "poptorch.py").write_text(body)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "poptorch", raising=False)

    return pretend


def with_ipu(version: int) -> str:
    return f"def ipuHardwareIsAvailable(): return True\ndef ipuHardwareVersion(): return {version}\n"


NONE = "def ipuHardwareIsAvailable(): return False\ndef ipuHardwareVersion(): raise RuntimeError('no IPU')\n"


@pytest.mark.slow
def test_a_program_is_built_by_the_sdk_and_runs_on_its_model(sdk: Path, compiler: None, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    wanted = np.maximum(x @ np.arange(64, dtype=np.float32).reshape(8, 8), 0)
    with rammer.compile(model(), "ipu", device="model", arch=ARCH) as program:
        (found,) = program.run({"x": x}).values()
        text = program.executable.profile_text()  # type: ignore[attr-defined]
        with pytest.raises(DeviceError, match="only the emulator's profile"):
            program.executable.profile()  # type: ignore[attr-defined]
        program.save(tmp_path / "program")
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert "cycles" in text
    popc, gxx = sdk.read_text().splitlines()
    assert popc.startswith("popc -O3 --target cpu,ipu2 ") and popc.endswith("codelets.gp")
    assert gxx.startswith("g++ -std=c++17 ") and " -lpoplar " in gxx
    with rammer.load(tmp_path / "program", device="model") as program:
        (again,) = program.run({"x": x}).values()
    assert (again == found).all()


@pytest.mark.slow
def test_hardware_that_nobody_can_attach_to(sdk: Path, compiler: None) -> None:
    """Without poptorch Poplar is asked, and says what it found."""
    assert find_hardware().available is None
    with pytest.raises(DeviceError, match="Poplar refused the program: no IPU is free; found: 0"):
        rammer.compile(model(), "ipu", device="hardware", arch=ARCH)


def test_a_popc_that_fails(sdk: Path, tmp_path: Path) -> None:
    executable(tmp_path / "poplar-0.0" / "bin" / "popc", "#!/bin/sh\necho 'error: no' >&2\nexit 3\n")
    with pytest.raises(ToolchainError, match=r"(?s)failed with status 3: .*popc.*error: no"):
        rammer.compile(model(), "ipu", device="model", arch=ARCH)


def test_poptorch_decides_the_default_device(sdk: Path, poptorch: Poptorch) -> None:
    assert probe().ok and not probe().reason
    poptorch(NONE)
    assert PluginRegistry().open("ipu", arch=ARCH).device == "model"  # type: ignore[attr-defined]
    poptorch(with_ipu(21))
    assert PluginRegistry().open("ipu", arch=ARCH).device == "hardware"  # type: ignore[attr-defined]


def test_poptorch_finds_no_ipu(sdk: Path, poptorch: Poptorch) -> None:
    poptorch(NONE)
    with pytest.raises(DeviceError, match="no IPU here: poptorch finds none") as error:
        PluginRegistry().open("ipu", arch=ARCH, device="hardware")
    assert "device='model'" in error.value.hint


@pytest.mark.parametrize(
    ("version", "arch", "hint"), [(2, "gc2:4", "'gc200' or 'bow'"), (1, ARCH, "'gc2'"), (7, ARCH, "no such")]
)
def test_an_ipu_of_another_generation(sdk: Path, poptorch: Poptorch, version: int, arch: str, hint: str) -> None:
    poptorch(with_ipu(version))
    with pytest.raises(DeviceError, match=f"the IPU here is an ipu{version}") as error:
        PluginRegistry().open("ipu", arch=arch, device="hardware")
    assert hint in error.value.hint


@pytest.mark.parametrize("version", [2, 21, -1])
def test_an_ipu_that_fits(sdk: Path, poptorch: Poptorch, version: int) -> None:
    poptorch(with_ipu(version))
    assert PluginRegistry().open("ipu", arch="bow:4", device="hardware").spec.arch == "bow:4"


def test_a_broken_poptorch_is_no_answer(sdk: Path, poptorch: Poptorch) -> None:
    poptorch("raise ImportError('libpoplar.so: cannot open shared object file')")
    found = find_hardware()
    assert found.available is None and "cannot open shared object file" in found.reason


def test_without_an_sdk(no_sdk: None) -> None:
    for device in ("hardware", "model"):
        with pytest.raises(DeviceError, match=r"no Poplar SDK for gc2.*popc is not on PATH") as error:
            PluginRegistry().open("ipu", arch="gc2:8", device=device)
        assert "enable.sh" in error.value.hint
    with pytest.raises(DeviceError, match="did you mean 'hardware'"):
        PluginRegistry().open("ipu", device="hardwear")


def test_where_an_sdk_is_found(no_sdk: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the variable says, also one folder deeper, or on PATH; codelets for the model and the chip."""
    popc = executable(tmp_path / "poplar-3.3" / "bin" / "popc", "#!/bin/sh\n")
    monkeypatch.setenv("POPLAR_SDK", str(tmp_path))
    sdk = find_sdk()
    assert sdk is not None and sdk.popc == str(popc)
    compile_codelets, compile_host = sdk.commands(parse_arch("gc2"))
    assert compile_codelets[:4] == [str(popc), "-O3", "--target", "cpu,ipu1"]
    assert "-lpoplar" in compile_host and f"-I{popc.parent.parent}/include" in compile_host
    assert not any("emulator" in word for word in (*compile_codelets, *compile_host))
    monkeypatch.delenv("POPLAR_SDK")
    assert find_sdk() is None
    monkeypatch.setenv("PATH", str(popc.parent))
    sdk = find_sdk()
    assert sdk is not None and sdk.root is None
