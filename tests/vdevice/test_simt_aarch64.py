"""The emulator on aarch64, fibers and all: cross-compiled by ziglang and run by qemu-user."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simt_standalone import program_file, program_outputs, program_text

import rammer
from rammer import config
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer.vdevice import toolchain
from rammer.vdevice.base import Image
from rammer.vdevice.simt.emulator.compile import FLAGS
from rammer_viz.demo import lstm_stack

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="the other tests of the emulator run here"),
    pytest.mark.skipif(QEMU is None, reason="no qemu-aarch64: apt install qemu-user"),
]


def convolution() -> Graph:
    random = np.random.default_rng(1)
    net = GraphBuilder()
    weight, bias = random.standard_normal((24, 8, 3, 3)) / 9, random.standard_normal(24)
    t = net.add("conv", net.input("x", (1, 8, 12, 12)), net.constant(weight.astype(np.float32)),
                net.constant(bias.astype(np.float32)), pads=(1, 1, 1, 1))  # fmt: skip
    net.output(net.add("softmax", net.add("relu", t), axis=1))
    return net.build()


def product() -> Graph:
    net = GraphBuilder()
    weight = np.random.default_rng(2).standard_normal((64, 72)).astype(np.float32)
    net.output(net.add("matmul", net.input("x", (40, 64)), net.constant(weight)))
    return net.build()


PROGRAMS: dict[str, tuple[Graph, str, dict[str, Any], float]] = {
    "LSTM, waves of 32": (rammer.from_onnx(lstm_stack(2, 3, 16)), "cuda", {"policy": "wavefront"}, 1e-5),
    "LSTM, waves of 64": (rammer.from_onnx(lstm_stack(2, 3, 16)), "rocm", {"policy": "list"}, 1e-5),
    "convolution": (convolution(), "cuda", {}, 1e-5),
    "matrix units": (product(), "cuda", {"precision": "tf32"}, 0.05),
}


def build(image: Image, folder: Path) -> Path:
    """A static binary for aarch64."""
    with config.override(RAMMER_CC=None):
        compiler = toolchain.c_compiler()
    (folder / "program.cc").write_text(program_text(image), encoding="utf-8")
    argv = [*compiler.command, "-target", "aarch64-linux-musl", "-static", "-w", *FLAGS, "program.cc", "-o", "program"]
    toolchain.run([*argv, "-lm"], folder=str(folder), timeout_s=600)
    return folder / "program"


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compute_the_same_in_every_order_of_threads(name: str, tmp_path: Path) -> None:
    graph, target, options, tolerance = PROGRAMS[name]
    shape = graph.types["x"].shape
    x: Array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with rammer.compile(graph, target, device="emulator:3", tune_seconds=0, **options) as program:
        image, here = program.image, program(x)
    binary = build(image, tmp_path)
    found = []
    for seed in range(4):
        (tmp_path / "data").write_bytes(program_file(image, {"x": x}, seed))
        done = subprocess.run(
            [str(QEMU), str(binary), str(tmp_path / "data"), "-"], capture_output=True, timeout=300, check=True
        )
        (output,) = program_outputs(image, done.stdout).values()
        found.append(output)
        np.testing.assert_array_equal(output, found[0])
    (wanted,) = evaluate_graph(graph, {"x": x}).values()
    np.testing.assert_allclose(found[0], wanted, rtol=100 * tolerance, atol=tolerance)
    np.testing.assert_allclose(found[0], here, rtol=1e-4, atol=1e-5)  # a*b+c is one instruction there
