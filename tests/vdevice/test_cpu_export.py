"""Exported projects: they build without warnings, give what the program gives, and refuse what is wrong."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import build, compiled, detector
from onnx import TensorProto, helper

import rammer
from rammer.errors import ArtifactError, DeviceError, InputError
from rammer.frontend.builder import GraphBuilder
from rammer.runtime.program import Program, identifier
from rammer.vdevice.cpu.export.tables import CpuExport, plan_source, steps
from rammer.vdevice.cpu.host import find_arch, host
from rammer.vdevice.cpu.runtime.table import TABLE, Table
from rammer.vdevice.toolchain import c_compiler


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Path]:
    folder = tmp_path_factory.mktemp("exported") / "project"
    program = compiled()
    program.export(folder, name="detector")
    return program, folder


@pytest.fixture(scope="module")
def library(exported: tuple[Program, Path]) -> ctypes.CDLL:
    folder = exported[1]
    found = ctypes.CDLL(str(build(folder, folder.parent / "detector.so", "-lm", shared=True)))
    for name in ("rammer_text", "rammer_failed", "rammer_arch"):
        getattr(found, name).restype = ctypes.c_char_p
    for name in ("rammer_own_stream", "rammer_value"):
        getattr(found, name).restype = ctypes.c_void_p
    for name in ("rammer_memory", "rammer_stream_memory"):
        getattr(found, name).restype = ctypes.c_size_t
    return found


class Options(ctypes.Structure):
    """rammer_options of rammer.h."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("weights_file", ctypes.c_char_p),
        ("weights", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
        ("memory_bytes", ctypes.c_size_t),
    )


def opened(library: ctypes.CDLL, **given: Any) -> tuple[int, ctypes.c_void_p]:
    program = ctypes.c_void_p()
    options = Options(ctypes.sizeof(Options), library.rammer_version(), threads=1)
    for name, value in given.items():
        setattr(options, name, value)
    model = ctypes.byref(ctypes.c_char.in_dll(library, "detector_model"))
    return library.rammer_open(model, ctypes.byref(options), ctypes.byref(program)), program


def run(call: Callable[..., int], on: ctypes.c_void_p, x: Any, speaker: int) -> tuple[int, Any]:
    number, y = np.array([speaker], np.int64), np.full((3, 5), np.nan, np.float32)
    inputs = (ctypes.c_void_p * 2)(x.ctypes.data, number.ctypes.data)
    outputs = (ctypes.c_void_p * 1)(y.ctypes.data)
    return call(on, inputs, outputs), y


@pytest.mark.parametrize("threads", [0, 1])
def test_streams_give_what_the_program_gives(
    exported: tuple[Program, Path], library: ctypes.CDLL, threads: int
) -> None:
    status, program = opened(library, threads=threads)
    assert status == 0
    second = ctypes.c_void_p()
    assert library.rammer_open_stream(program, None, ctypes.byref(second)) == 0
    first = ctypes.c_void_p(library.rammer_own_stream(program))
    peers = [exported[0].stream(), exported[0].stream()]
    random = np.random.default_rng(0)
    for n in range(7):
        which = n % 3 == 2
        x = random.standard_normal((3, 65)).astype(np.float32)
        wanted = peers[which].run({"x": x, "speaker": np.array([n], np.int64)})["y"]
        status, found = run(library.rammer_run_stream, (first, second)[which], x, n)
        assert status == 0 and np.array_equal(found, wanted)
    held = np.ctypeslib.as_array((ctypes.c_float * 288).from_address(library.rammer_value(second, 0)))
    assert np.array_equal(held.reshape(3, 96), peers[1].state()["h"])
    library.rammer_reset(second)
    peers[1].reset()
    wanted = peers[1].run({"x": x, "speaker": np.array([0], np.int64)})["y"]
    assert np.array_equal(run(library.rammer_run_stream, second, x, 0)[1], wanted)
    library.rammer_close_stream(second)
    library.rammer_close(program)


def test_parts_are_models_of_one_project(tmp_path: Path) -> None:
    """Equal weights are stored once, and each model gives what its part of the program gives."""
    b = GraphBuilder()
    columns = b.constant(np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32))
    b.output(b.add("matmul", b.input("p", (3, 5)), columns), "z")
    models, links = {"vad": detector(), "turn": b.build()}, {"turn.p": "vad.y"}
    x, speaker = np.random.default_rng(0).standard_normal((3, 65)).astype(np.float32), np.array([4])
    with rammer.compile(
        models, device=2, links=links, state={"vad.h_out": "vad.h"}, together=[("vad",)], tune_seconds=0
    ) as program:
        program.export(tmp_path / "parts", name="voice")
        wanted = {
            "voice": program.stream().run({"vad.x": x, "vad.speaker": speaker})["turn.z"],
            "voice_vad": program.stream().part("vad").run({"vad.x": x, "vad.speaker": speaker})["vad.y"],
        }
    with rammer.compile(models, device=2, links=links, together=[], tune_seconds=0) as program:
        program.export(tmp_path / "whole", name="voice")
    sizes = [(tmp_path / which / "weights.bin").stat().st_size for which in ("parts", "whole")]
    assert sizes[0] <= 1.5 * sizes[1]
    assert [*json.loads((tmp_path / "parts" / "manifest.json").read_text())["parts"]] == ["voice_vad"]
    library = ctypes.CDLL(str(build(tmp_path / "parts", tmp_path / "voice.so", "-lm", shared=True)))
    for model, value in wanted.items():
        opened, found = ctypes.c_void_p(), np.full_like(value, np.nan)
        named = ctypes.byref(ctypes.c_char.in_dll(library, f"{model}_model"))
        assert library.rammer_open(named, None, ctypes.byref(opened)) == 0
        inputs = (ctypes.c_void_p * 2)(x.ctypes.data, speaker.ctypes.data)
        assert library.rammer_run(opened, inputs, (ctypes.c_void_p * 1)(found.ctypes.data)) == 0
        np.testing.assert_array_equal(found, value)
        library.rammer_close(opened)


def test_an_index_out_of_range_names_its_operator_and_leaves_the_state(library: ctypes.CDLL) -> None:
    program = opened(library)[1]
    x = np.ones((3, 65), np.float32)
    before = run(library.rammer_run, program, x, 1)[1]
    status, _ = run(library.rammer_run, program, x, 7)
    assert status == 1 and b"gather" in library.rammer_failed(program).lower()
    after = run(library.rammer_run, program, x, 1)
    fresh = opened(library)[1]
    run(library.rammer_run, fresh, x, 1)
    assert after[0] == 0 and np.array_equal(after[1], run(library.rammer_run, fresh, x, 1)[1])
    assert not np.array_equal(before, after[1])
    library.rammer_close(program)
    library.rammer_close(fresh)


def test_memory_and_weights_may_be_the_callers(exported: tuple[Program, Path], library: ctypes.CDLL) -> None:
    folder = exported[1]
    model = ctypes.byref(ctypes.c_char.in_dll(library, "detector_model"))
    nbytes = library.rammer_memory(model)
    block = np.full(nbytes + 128, 0xAA, np.uint8)
    memory = block.ctypes.data + -block.ctypes.data % 128
    weights = folder / "weights.bin"
    x = np.ones((3, 65), np.float32)
    status, program = opened(library, memory=memory, memory_bytes=nbytes, weights_file=str(weights).encode())
    assert status == 0
    _, found = run(library.rammer_run, program, x, 2)
    library.rammer_close(program)
    assert np.array_equal(found, exported[0].stream().run({"x": x, "speaker": np.array([2], np.int64)})["y"])
    bad_argument, no_weights = 3, 7
    assert opened(library, memory=memory, memory_bytes=nbytes - 1)[0] == bad_argument
    assert opened(library, memory=memory + 8, memory_bytes=nbytes)[0] == bad_argument
    assert opened(library, weights_file=b"/nowhere")[0] == no_weights
    for damage in (weights.read_bytes()[:-1], b"x" + weights.read_bytes()[1:]):
        (folder.parent / "damaged.bin").write_bytes(damage)
        assert opened(library, weights_file=str(folder.parent / "damaged.bin").encode())[0] == no_weights
    assert b"weights" in library.rammer_text(no_weights)


def test_the_self_check_notices_wrong_weights(exported: tuple[Program, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported[1], folder)
    good = build(folder, tmp_path / "good", "-lm")
    done = subprocess.run([good], capture_output=True, text=True)
    assert done.returncode == 0 and "1 of 1 outputs right" in done.stdout
    data = bytearray((folder / "weights.bin").read_bytes())
    for at in range(128, len(data) // 2, 4):  # signs of the first weights
        data[at + 3] ^= 0x80
    (folder / "weights.bin").write_bytes(bytes(data))
    done = subprocess.run([good, folder / "weights.bin"], capture_output=True, text=True)
    assert done.returncode == 1 and "should be" in done.stdout


def test_several_cpus_share_a_project(tmp_path: Path) -> None:
    """The best plan that the CPU runs is chosen; equal weights are stored once."""
    best, plain = compiled(), compiled(arch=find_arch("x86-64" if host().machine == "x86_64" else "aarch64-neon").name)
    plain.export(tmp_path / "project", name="detector", others=[best])
    listed = json.loads((tmp_path / "project" / "manifest.json").read_text())
    assert listed["arches"] == list(dict.fromkeys([best.plan.spec.arch, plain.plan.spec.arch]))
    done = subprocess.run([build(tmp_path / "project", tmp_path / "check", "-lm")], capture_output=True, text=True)
    assert done.returncode == 0 and f"({best.plan.spec.arch})" in done.stdout


def test_one_thread_can_run_all_slots(exported: tuple[Program, Path]) -> None:
    """Each rTask once, and none before what its barrier waits for."""
    program = exported[0]
    table, order = Table.from_bytes(program.image.file(TABLE)), steps(CpuExport(program.image, program.plan, []))
    at = {slot: n for n, (slot, _) in enumerate(order)}
    assert sorted(at) == [n for n, slot in enumerate(table.slots) if slot[0] >= 0] and len(at) == len(order)


def test_what_cannot_be_exported_is_refused(exported: tuple[Program, Path], tmp_path: Path) -> None:
    program, folder = exported
    with pytest.raises(ArtifactError, match="not empty"):
        program.export(folder)
    with pytest.raises(InputError, match="not a name for C"):
        program.export(tmp_path / "a", name="2d")
    for name in ("weights", "cpu", "Rammer"):  # which the project has for itself, on some systems in any case
        with pytest.raises(InputError, match="twice"):
            program.export(tmp_path / "a", name=name)
    program.save(tmp_path / "saved.rammer")
    with pytest.raises(ArtifactError, match="sources"):
        rammer.load(tmp_path / "saved.rammer").export(tmp_path / "b")
    other = rammer.compile(detector(), device=2)
    with pytest.raises(InputError, match="different inputs"):
        program.export(tmp_path / "c", name="c", others=[other])
    assert not (tmp_path / "c").exists()
    assert [identifier(n) for n in ("a/voice-1.onnx", "2d.onnx", "é.onnx")] == ["voice_1", "model_2d", "model"]


def test_webassembly_has_no_float16() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [3, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3, 5])
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "half", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(DeviceError, match="float16"):
        rammer.compile(model, arch="wasm32-simd128", device=1)


def test_kernels_with_equal_bodies_are_one_function(exported: tuple[Program, Path]) -> None:
    table = Table.from_bytes(exported[0].image.file(TABLE))
    first, *others = table.header["kernels"]
    twice = replace(table, header={**table.header, "kernels": [first, *others, first]})
    image = replace(exported[0].image, files={**exported[0].image.files, TABLE: twice.to_bytes()})
    plan = exported[0].plan
    source = plan_source("p", CpuExport(image, plan, []), find_arch(plan.spec.arch), [0] * 9)
    assert source.count("void p_k0(") == 1 and re.search(r"kernels\[\] = {\s*p_k0,(?s:.*)p_k0}", source)


def test_the_header_is_plain_c_and_c_plus_plus(exported: tuple[Program, Path], tmp_path: Path) -> None:
    source = tmp_path / "use.c"
    source.write_text(
        '#include "detector.h"\nrammer_options o = RAMMER_DEFAULTS;\n'
        "int main(void) { return rammer_version() < o.version; }\n"
    )
    strict = (
        "-Wall",
        "-Wextra",
        "-pedantic",
        "-Werror",
        "-c",
        f"-I{exported[1]}/include",
        str(source),
        "-o",
        str(tmp_path / "use.o"),
    )
    for kind in (("-std=c89",), ("-x", "c++", "-std=c++98")):
        subprocess.run([*c_compiler().command, *kind, *strict], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None or sys.platform != "linux", reason="needs CMake")
def test_cmake_builds_checks_and_installs_it(exported: tuple[Program, Path], tmp_path: Path) -> None:
    made, where = tmp_path / "build", tmp_path / "installed"
    for command in (
        ["cmake", "-S", exported[1], "-B", made, f"-DCMAKE_INSTALL_PREFIX={where}"],
        ["cmake", "--build", made],
        ["ctest", "--test-dir", made],
        ["cmake", "--install", made],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "use.c").write_text(
        '#include "detector.h"\nint main(void) { return rammer_memory(&detector_model) == 0; }\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(use C)\nfind_package(detector REQUIRED)\n"
        "add_executable(use use.c)\ntarget_link_libraries(use PRIVATE detector::detector)\n"
    )
    use = tmp_path / "use"
    subprocess.run(
        ["cmake", "-S", tmp_path, "-B", use, f"-DCMAKE_PREFIX_PATH={where}"], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["cmake", "--build", use], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([use / "use"], check=True)
