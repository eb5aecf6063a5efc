"""Exported projects for GPUs: they run over a driver without a GPU, which runs the emulator's text.

Machine code for AMD GPUs is compiled here, for NVIDIA's where NVRTC is. No GPU runs it.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import wine
from click.testing import CliRunner
from exports import build, compile_only, compiled, detector
from test_cpu_export_sanitized import hand_written_files_are_clean, runs_clean

import rammer
from rammer.cli.commands import main
from rammer.errors import DeviceError
from rammer.ir.tensor import Array
from rammer.runtime.program import Program
from rammer.vdevice.cuda import device as cuda
from rammer.vdevice.rocm import device as rocm
from rammer.vdevice.rocm.elf import arch_of
from rammer.vdevice.simt.codegen.table import ENTRY
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.simt.runtime.streams import checked_streams
from rammer.vdevice.toolchain import c_compiler
from rammer_viz.demo import lstm_stack

HERE = Path(__file__).parent
ARCHS = {"cuda": "sm_90", "rocm": "gfx1100"}
NUM_VEUS = 3
ONE = pytest.mark.parametrize("exported", ["cuda"], indirect=True)  # all but the names of functions is shared
GOOD = 7  # runs whose index is in range
CLOSING = ("Release", "Free", "Unload", "StreamDestroy")  # functions whose errors come when all is done


class Exported(NamedTuple):
    """A project, its program, and where its driver and the text that this runs are."""

    folder: Path
    program: Program
    driver: Path
    code: Path

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program over the driver."""
        given = {**os.environ, "LD_LIBRARY_PATH": str(self.driver.parent), "FAKE_CODE": str(self.code), **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=given)


def small_gpus(patch: pytest.MonkeyPatch) -> None:
    """Let known GPUs have few multiprocessors; without NVRTC, machine code is the head of an ELF file."""
    code = MachineCode(b"\177ELF" + bytes(60), {ENTRY: KernelResources(64, 0, 0, 0, 64, "none")})
    for module in (cuda, rocm):
        platform = module.PLATFORM
        choose = platform.choose_gpu

        def few(arch: str | None, choose: Callable[..., object] = choose) -> object:
            return replace(choose(arch), num_multiprocessors=NUM_VEUS)  # type: ignore[type-var]

        lacking = module is cuda and importlib.util.find_spec("nvidia") is None
        made = {"compile": lambda text, arch: code} if lacking else {}
        patch.setattr(module, "PLATFORM", replace(platform, choose_gpu=few, **made))  # type: ignore[arg-type]


def for_gpu(target: str) -> Program:
    return rammer.compile(detector(), target, arch=ARCHS[target], state={"h_out": "h"}, tune_seconds=0)


def exported_to(where: Path, compile: Callable[[], Program]) -> Exported:
    """Export a program, and compile what stands in for the driver and the machine code."""
    with pytest.MonkeyPatch.context() as patch:
        small_gpus(patch)
        program = compile()
        program.export(where / "project", name="detector")
    suffix, name = {"cuda": ("cu", "libcuda.so.1"), "rocm": ("hip", "libamdhip64.so")}[program.target]
    driver, code = where / "driver" / name, where / "code.so"
    driver.parent.mkdir()
    flags = ("-shared", "-fPIC", "-O1", "-w", *(("-DHIP",) if program.target == "rocm" else ()))
    command = (*c_compiler().command, *flags, HERE / "fake_driver.c", "-lpthread", "-ldl", "-o", driver)
    subprocess.run(command, check=True)
    code.write_bytes(compile_host((where / "project" / f"detector_plan_0.{suffix}").read_text()))
    return Exported(where / "project", program, driver, code)


@pytest.fixture(scope="module", params=["cuda", "rocm"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported_to(tmp_path_factory.mktemp(request.param), lambda: for_gpu(request.param))


def self_check(exported: Exported) -> Path:
    flags = ("-DRAMMER_CHECK_RUNS=2",)
    return build(exported.folder, exported.folder.parent / "check", "-lm", "-ldl", "-lpthread", flags=flags)


@pytest.fixture(scope="module")
def check(exported: Exported) -> Path:
    return self_check(exported)


def test_the_self_check_finds_its_outputs_right(exported: Exported, check: Path) -> None:
    done = exported.run(check)
    assert done.returncode == 0 and f"1 of 1 outputs right ({ARCHS[exported.program.target]})" in done.stdout, done
    assert exported.run(check, exported.folder / "weights.bin").returncode == 0


def test_resident_weights_and_lanes_that_wait(tmp_path: Path) -> None:
    how = {"arch": "sm_90", "policy": "stationary", "tune_seconds": 0}
    found = exported_to(tmp_path, lambda: rammer.compile(lstm_stack(1, 8, 32), "cuda", **how))  # type: ignore[arg-type]
    streams = checked_streams(found.program.image)
    assert int(streams.header["resident_bytes"]) and np.all(np.diff(streams.bounds) > 0) and len(streams.waits)
    assert np.any(streams.arg_offset[streams.arg_base >= 0])  # parts of constants
    done = found.run(self_check(found))
    assert done.returncode == 0 and "1 of 1 outputs right" in done.stdout, done


TYPES = """<ir_version: 10, opset_import: ["": 21]> types
    (float16[3,40] half, bfloat16[3,40] brain, int64[5] i, uint8[5,3] u, bool[5] b, double[7,9] d,
     float[1,3,33,29] x, float[8,3,3,3] w)
    => (float16[3,40] a, bfloat16[3,40] c, int64[5] e, uint8[5,3] f, bool[5] g, double[7] k,
        float[1,8,31,27] y, float[2] two, float[8,3,3,3] same)
    { a = Tanh(half) c = Sigmoid(brain) e = Mul(i, i) f = Add(u, u) g = Not(b) one = Constant<value_ints = [1]>()
      k = ReduceSum<keepdims = 0>(d, one) y = Conv(x, w) two = Constant<value = float[2] {1.5, 2.5}>()
      same = Identity(w) }"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx906", "gfx90a", "gfx1100"])
def test_types_on_every_arch(arch: str, tmp_path: Path) -> None:
    target, model = "cuda" if arch.startswith("sm") else "rocm", onnx.parser.parse_model(TYPES)
    found = exported_to(tmp_path, lambda: rammer.compile(model, target, arch=arch, tune_seconds=0))
    done = found.run(self_check(found))
    assert done.returncode == 0 and f"9 of 9 outputs right ({arch})" in done.stdout, done


RUN = """
import ctypes, os, sys
import numpy as np
from test_cpu_export import Options, opened, run

class Newer(Options):
    _fields_ = ("parallel", ctypes.c_void_p), ("host", ctypes.c_void_p), ("device", ctypes.c_int)

library = ctypes.CDLL(sys.argv[1])
for name in ("rammer_own_stream", "rammer_failed", "rammer_value"):
    getattr(library, name).restype = ctypes.c_void_p
status, program = opened(library)
second = ctypes.c_void_p()
assert status == 0 and library.rammer_open_stream(program, None, ctypes.byref(second)) == 0
streams = ctypes.c_void_p(library.rammer_own_stream(program)), second
found = []
for n, x in enumerate(np.load(sys.argv[2])):
    status, y = run(library.rammer_run_stream, streams[n % 3 == 2], x, n)
    assert status == (n >= 7)
    found += [y] * (status == 0)
print(ctypes.string_at(library.rammer_failed(program)).decode())
states = [(ctypes.c_float * 288).from_address(library.rammer_value(stream, 0)) for stream in streams]
np.save(sys.argv[4], [np.ctypeslib.as_array(state).reshape(3, 96) for state in states])
states[0][7] = 3.0
status, y = run(library.rammer_run, program, x, 0)
found.append(y)
reads = ctypes.c_int.in_dll(ctypes.CDLL(os.listdir(os.environ["LD_LIBRARY_PATH"])[0]), "fake_reads")
before = reads.value
library.rammer_reset(streams[0])
assert reads.value == before  # what is given up is not copied
found += [run(library.rammer_run, program, x, 0)[1] for _ in range(2)]
assert run(library.rammer_run_stream, second, x, 0)[0] == 0
before = reads.value
library.rammer_close_stream(second)
library.rammer_close(program)
assert reads.value == before
for device, wanted in ((1, 0), (2, 10), (-1, 10)):
    options = Newer(ctypes.sizeof(Newer), library.rammer_version(), threads=1, device=device)
    model = ctypes.c_char.in_dll(library, "detector_model")
    assert library.rammer_open(ctypes.byref(model), ctypes.byref(options), ctypes.byref(program)) == wanted
    library.rammer_close(program)
np.save(sys.argv[3], found)
"""


def test_streams_give_what_the_emulator_gives(exported: Exported) -> None:
    """Bit by bit, with a state each; an index out of range names its operator and leaves the state."""
    where = exported.folder.parent
    library = build(exported.folder, where / "detector.so", "-lm", "-ldl", "-lpthread", shared=True)
    x = np.random.default_rng(0).standard_normal((9, 3, 65)).astype(np.float32)
    np.save(where / "x.npy", x)
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    files = [where / f"{name}.npy" for name in "xyh"]
    done = exported.run(sys.executable, "-c", RUN, library, *files, PYTHONPATH=paths)
    assert done.returncode == 0 and "gather" in done.stdout.lower(), done
    emulator, states = EmulatorExecutable(exported.program.image), [np.zeros((3, 96), np.float32)] * 2

    def check(found: Array, x: Array, speaker: int, stream: int) -> None:
        wanted = emulator.run({"x": x, "speaker": np.array([speaker], np.int64), "h": states[stream]})
        states[stream] = wanted["h_out"]
        np.testing.assert_array_equal(found, wanted["y"])

    *found, set_value, first, second = np.load(files[1])
    assert len(found) == GOOD
    for n, y in enumerate(found):
        check(y, x[n], n, n % 3 == 2)
    np.testing.assert_array_equal(np.load(files[2]), states)
    states[0] = states[0].copy()
    states[0].flat[7] = 3
    check(set_value, x[-1], 0, 0)
    states[0] = np.zeros_like(states[0])
    check(first, x[-1], 0, 0)
    check(second, x[-1], 0, 0)
    emulator.close()


@ONE
@pytest.mark.parametrize("under", ["memory", "threads"])
def test_it_runs_clean(exported: Exported, under: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also from several threads at once, with streams and memory of the caller's."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(exported.driver.parent))
    monkeypatch.setenv("FAKE_CODE", str(exported.code))
    runs_clean(exported.folder, "detector", under, tmp_path)


def test_what_a_driver_refuses_is_told_and_given_back(exported: Exported, check: Path) -> None:
    text = (exported.folder / "src" / f"{exported.program.target}.c").read_text()
    names = re.findall(r'"((?:cu|hip)\w+)"', text)
    assert len(names) > 19
    for name in names:
        done = exported.run(check, FAKE_FAIL=name)
        if any(word in name for word in CLOSING):
            assert "1 of 1 outputs right" in done.stdout, (name, done)
        else:
            assert done.returncode == 2 and done.stdout.startswith("detector: "), (name, done)
    done = exported.run(check, FAKE_MULTIPROCESSORS=str(NUM_VEUS - 1))
    assert done.returncode == 2 and "no code for this CPU or GPU" in done.stdout, done


@ONE
@pytest.mark.parametrize("family", ["gcc", "clang"])
def test_hand_written_files_compile_without_warnings(exported: Exported, family: str, tmp_path: Path) -> None:
    hand_written_files_are_clean(exported.folder, family, tmp_path)


def test_a_machine_without_the_driver_takes_the_cpus_plan(exported: Exported, check: Path, tmp_path: Path) -> None:
    if ctypes.util.find_library("cuda") or ctypes.util.find_library("amdhip64"):
        pytest.skip("a driver is here")
    done = subprocess.run([check], capture_output=True, text=True)
    assert done.returncode == 2 and "no such GPU, or no driver" in done.stdout
    here = compiled()
    here.export(tmp_path / "both", name="detector", others=[exported.program])
    both = build(tmp_path / "both", tmp_path / "check", "-lm", "-ldl", "-lpthread", flags=("-DRAMMER_CHECK_RUNS=2",))
    done = subprocess.run([both], capture_output=True, text=True)
    assert done.returncode == 0 and f"1 of 1 outputs right ({here.plan.spec.arch})" in done.stdout
    assert f"({ARCHS[exported.program.target]})" in exported.run(both).stdout
    load = {"cuda": "cuModuleLoadData", "rocm": "hipModuleLoadData"}[exported.program.target]
    assert f"({here.plan.spec.arch})" in exported.run(both, FAKE_FAIL=load).stdout  # a GPU of another arch


def test_programs_of_emulators_are_refused(tmp_path: Path) -> None:
    with (
        rammer.compile(detector(), "cuda", device="emulator:2", tune_seconds=0) as program,
        pytest.raises(DeviceError, match="cannot be exported"),
    ):
        program.export(tmp_path / "project", name="detector")


def test_the_command_line_takes_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one project; a library takes the first whose machine code the driver loads."""
    small_gpus(monkeypatch)
    onnx.save(detector(), tmp_path / "vad.onnx")
    how = ("--target", "rocm", "--arch", "gfx906,gfx1100", "--tune-seconds", "0", "--state", "h_out=h")
    done = CliRunner().invoke(main, ["export", str(tmp_path / "vad.onnx"), "-o", str(tmp_path / "project"), *how])
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "project/manifest.json").read_text())
    assert sorted(manifest["arches"]) == ["gfx1100", "gfx906"] and manifest["name"] == "vad"
    for n, arch in enumerate(manifest["arches"]):
        assert arch_of((tmp_path / f"project/vad_plan_{n}.hsaco").read_bytes()) == arch


WINDOWS = ("-target", "x86_64-windows-gnu")


@ONE
def test_it_compiles_for_windows(exported: Exported, tmp_path: Path) -> None:
    if c_compiler().family != "zig":
        pytest.skip("only zig compiles for other systems")
    compile_only(exported.folder, tmp_path / "objects", (exported.folder / "main.c",), WINDOWS, c_compiler())


@pytest.mark.slow
@ONE
def test_wine_runs_it_and_has_no_gpu(exported: Exported, tmp_path: Path) -> None:
    """For this zig builds a libc, which takes minutes with an empty cache."""
    if c_compiler().family != "zig":
        pytest.skip("only zig compiles for other systems")
    done = wine.run(build(exported.folder, tmp_path / "check.exe", "-lntdll", flags=WINDOWS))
    assert done.returncode == 2 and "no such GPU, or no driver" in done.stdout, done


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None or sys.platform != "linux", reason="needs CMake")
def test_cmake_builds_and_checks_it(exported: Exported, tmp_path: Path) -> None:
    for command in (
        ["cmake", "-S", exported.folder, "-B", tmp_path, "-DCMAKE_C_FLAGS=-DRAMMER_CHECK_RUNS=2"],
        ["cmake", "--build", tmp_path],
        ["ctest", "--test-dir", tmp_path],
    ):
        done = exported.run(*command)
        assert done.returncode == 0, done
