"""Exported projects under sanitizers and valgrind: the self-check, and runs from several threads at once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpus import runnable
from exports import WARNINGS, build, compiled, gcc, include
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.vdevice.cpu.host import host
from rammer.vdevice.cpu.runtime.table import TABLE, Table
from rammer.vdevice.toolchain import Compiler, c_compiler

STRESS = Path(__file__).with_name("export_stress.c")
SANITIZERS = {
    "memory": ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "threads": ("-g", "-fsanitize=thread"),
    "valgrind": ("-g",),
}
MODELS = (
    *("today_vad", "today_keyword", "today_denoiser_16", "today_gru4rec", "today_mobilenet_v2", "today_minilm_8"),
)


def runs_clean(folder: Path, name: str, under: str, where: Path) -> None:
    """Build the self-check and export_stress.c with a sanitizer, and run both."""
    compiler, flags = gcc(), SANITIZERS[under]
    start = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full") if under == "valgrind" else ()
    if start and shutil.which(start[0]) is None:
        pytest.skip("no valgrind here")
    probe = [*compiler.command, *flags, "-x", "c", "-", "-o", str(where / "probe")]
    if subprocess.run(probe, input="int main(void) { return 0; }", capture_output=True, text=True).returncode:
        pytest.skip(f"gcc lacks {' '.join(flags)}")
    flags, objects = (*flags, f"-DMODEL={name}_model"), where / f"{under}.objects"
    check, stress = (
        build(folder, where / f"{under}-{n}", "-lm", flags=flags, compiler=compiler, main=main, objects=objects)
        for n, main in enumerate((None, STRESS))
    )
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=9"}
    for command in ([check], [check, "-", "alone"], [stress, folder / "weights.bin"]):
        done = subprocess.run([*start, *command], capture_output=True, text=True, timeout=600, env=environment)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("this system's random addresses are too many for gcc's TSan")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized") / "project"
    compiled().export(folder, name="detector")
    return folder


@pytest.mark.parametrize("under", ["memory", "threads"])
def test_a_voice_detector_runs_clean(detector: Path, under: str, tmp_path: Path) -> None:
    runs_clean(detector, "detector", under, tmp_path)


@pytest.mark.parametrize("under", ["memory", "threads"])
def test_hosts_with_fewer_threads_than_lanes(under: str, tmp_path: Path) -> None:
    """No lane counts on another one's thread: export_stress.c runs hosts of one thread, of two, and of none."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["q"], ["k"]),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "q"], ["y"]),
    ]
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((160, 160)).astype(np.float32) / 16, "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [75, 160]) for name in "xy")
    graph = helper.make_graph(nodes, "attention", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with rammer.compile(model, device=5, tune_seconds=0) as program:
        program.export(tmp_path / "project", name="attention")
        table = Table.from_bytes(program.image.file(TABLE))
        assert np.all(np.diff(table.bounds) > 0) and np.any(table.slots[:, 0] < 0)  # lanes, and waits
    runs_clean(tmp_path / "project", "attention", under, tmp_path)


def test_large_arrays_that_are_not_aligned_are_copied(tmp_path: Path) -> None:
    """Kernels read and write large arrays where the caller has them."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [75, 640]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with rammer.compile(model, device=2, tune_seconds=0) as program:
        program.export(tmp_path / "project", name="relu")
        assert sorted(Table.from_bytes(program.image.file(TABLE)).header["direct"]) == ["x", "y"]
    runs_clean(tmp_path / "project", "relu", "memory", tmp_path)


def hand_written_files_are_clean(folder: Path, family: str, tmp_path: Path) -> None:
    """Compile them with optimisation, which some warnings need; `build` compiles them without."""
    compiler: Compiler = gcc() if family == "gcc" else c_compiler()
    if family == "clang" and compiler.family not in ("clang", "zig"):
        pytest.skip("no clang here")
    for path in (*folder.glob("src/*.c"), folder / "main.c", STRESS):
        if "kernels" not in path.name:
            command = (*compiler.command, "-std=gnu11", "-O2", "-DMODEL=detector_model", *WARNINGS)
            subprocess.run([*command, *include(folder), "-c", path, "-o", tmp_path / "o"], check=True, cwd=folder)


@pytest.mark.parametrize("family", ["gcc", "clang"])
def test_hand_written_files_compile_without_warnings(detector: Path, family: str, tmp_path: Path) -> None:
    hand_written_files_are_clean(detector, family, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_real_models_run_clean(model: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.models.catalog import prepare

    arch = runnable("x86-64-avx2") if host().machine == "x86_64" else None  # valgrind 3.19 knows no AVX-512
    program = rammer.compile(prepare(model, 1, "small").built.path, device=2, arch=arch, tune_seconds=0)
    program.export(tmp_path / "project", name="network")
    for under in SANITIZERS:
        runs_clean(tmp_path / "project", "network", under, tmp_path)
