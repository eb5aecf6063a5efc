"""Exported projects for GPUs: they run over a driver without a GPU, which runs the emulator's text.

Machine code for AMD GPUs is compiled here, for NVIDIA's where NVRTC is. No GPU runs it.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from exports import build, compiled, detector
from test_cpu_export_sanitized import STRESS

import rammer
from rammer.errors import DeviceError
from rammer.runtime.program import Program
from rammer.vdevice.cuda import device as cuda
from rammer.vdevice.rocm import device as rocm
from rammer.vdevice.simt.codegen.megakernel import ENTRY
from rammer.vdevice.simt.emulator.compile import compile_host
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.toolchain import c_compiler

HERE = Path(__file__).parent
ARCHS = {"cuda": "sm_90", "rocm": "gfx1100"}
NUM_VEUS = 3
CLOSING = ("Pop", "Release", "Free", "Unload", "StreamDestroy")  # functions whose errors come when all is done


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


@pytest.fixture(scope="module", params=["cuda", "rocm"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    where = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        small_gpus(patch)
        program = for_gpu(request.param)
        program.export(where / "project", name="detector")
    suffix, name = {"cuda": ("cu", "libcuda.so.1"), "rocm": ("hip", "libamdhip64.so")}[request.param]
    driver, code = where / "driver" / name, where / "code.so"
    driver.parent.mkdir()
    flags = ("-shared", "-fPIC", "-O1", "-w", *(("-DHIP",) if request.param == "rocm" else ()))
    command = (*c_compiler().command, *flags, HERE / "fake_driver.c", "-lpthread", "-ldl", "-o", driver)
    subprocess.run(command, check=True)
    code.write_bytes(compile_host((where / "project" / f"detector_plan_0.{suffix}").read_text()))
    return Exported(where / "project", program, driver, code)


@pytest.fixture(scope="module")
def check(exported: Exported) -> Path:
    flags = ("-DRAMMER_CHECK_RUNS=2", "-DMODEL=detector_model")
    return build(exported.folder, exported.folder.parent / "check", "-lm", "-ldl", "-lpthread", flags=flags)


def test_the_self_check_finds_its_outputs_right(exported: Exported, check: Path) -> None:
    done = exported.run(check)
    assert done.returncode == 0 and f"1 of 1 outputs right ({ARCHS[exported.program.target]})" in done.stdout, done
    assert exported.run(check, exported.folder / "weights.bin").returncode == 0


RUN = """
import ctypes, sys
import numpy as np
from test_cpu_export import Options, opened, run

class Newer(Options):
    _fields_ = ("parallel", ctypes.c_void_p), ("host", ctypes.c_void_p), ("device", ctypes.c_int)

library = ctypes.CDLL(sys.argv[1])
library.rammer_own_stream.restype = library.rammer_failed.restype = ctypes.c_void_p
status, program = opened(library)
second = ctypes.c_void_p()
assert status == 0 and library.rammer_open_stream(program, None, ctypes.byref(second)) == 0
streams = ctypes.c_void_p(library.rammer_own_stream(program)), second
found = []
for n, x in enumerate(np.load(sys.argv[2])):
    status, y = run(library.rammer_run_stream, streams[n % 3 == 2], x, n)
    assert status == (n > 6)
    found += [y] * (status == 0)
print(ctypes.string_at(library.rammer_failed(program)).decode())
library.rammer_close_stream(second)
library.rammer_close(program)
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
    done = exported.run(*(sys.executable, "-c", RUN, library, where / "x.npy", where / "y.npy"), PYTHONPATH=paths)
    assert done.returncode == 0 and "gather" in done.stdout.lower(), done
    emulator, states = EmulatorExecutable(exported.program.image), [np.zeros((3, 96), np.float32)] * 2
    for n, found in enumerate(np.load(where / "y.npy")):
        wanted = emulator.run({"x": x[n], "speaker": np.array([n], np.int64), "h": states[n % 3 == 2]})
        states[n % 3 == 2] = wanted["h_out"]
        np.testing.assert_array_equal(found, wanted["y"])
    emulator.close()


def test_threads_and_streams_at_once(exported: Exported, check: Path) -> None:
    """Of programs that share a GPU; memory and arrays may be the caller's."""
    flags = ("-DRAMMER_CHECK_RUNS=2", "-DMODEL=detector_model")
    stress = build(
        *(exported.folder, exported.folder.parent / "stress", "-lm", "-ldl", "-lpthread"),
        flags=flags,
        main=STRESS,
        objects=exported.folder.parent / "check.objects",
    )
    done = exported.run(stress, exported.folder / "weights.bin")
    assert done.returncode == 0, done


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


def test_programs_of_emulators_are_refused(tmp_path: Path) -> None:
    with (
        rammer.compile(detector(), "cuda", device="emulator:2", tune_seconds=0) as program,
        pytest.raises(DeviceError, match="cannot be exported"),
    ):
        program.export(tmp_path / "project", name="detector")
