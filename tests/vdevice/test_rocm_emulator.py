"""HIP programs on the host: waves of 64 and 32, the S block syncs of threads that leave early. Paper: §4.2.1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import memory
from simt_plans import SIZE, agree, chain, mirror, placed, values
from test_rocm_build import in_hip
from test_rocm_isa import REVERSE
from test_simt_emulator import _tree

import rammer
from rammer.errors import DeviceError, LoweringError
from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import TensorType
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer_viz.demo import lstm_stack

GRAPH = chain(2)


def load(plan: ExecutionPlan, wave: int = 64) -> EmulatorExecutable:
    return EmulatorExecutable(make_image(plan, make_program(plan, hip(wave)), {}), poison=True)


@pytest.mark.parametrize("arch", ["gfx906", "gfx1100"])
def test_a_model_with_waves_of_64_and_of_32(arch: str) -> None:
    model = lstm_stack(2, 3, 16)
    x = np.random.default_rng(0).standard_normal((3, 1, 16)).astype(np.float32)
    wanted = evaluate_graph(rammer.from_onnx(model), {"x": x})["y"]
    with rammer.compile(model, "rocm", arch=arch, device="emulator:3", tune_seconds=0) as program:
        executable = program.executable
        assert isinstance(executable, EmulatorExecutable)
        assert executable.streams.header["threads"] % (64 if arch == "gfx906" else 32) == 0
        first = program(x)
        np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-5)
        executable.poison = True
        for executable.deterministic, executable.seed in ((True, 1), (False, 2)):
            np.testing.assert_array_equal(program(x), first)


@pytest.mark.parametrize("syncs", [2, 1, 3])
def test_foreign_kernels_count_their_syncs(syncs: int) -> None:
    """64 threads of a vEU with 256 run it; the others sync as often, or the emulator sees that threads part."""
    kernels = [
        in_hip(mirror(GRAPH, 64, text=REVERSE), num_block_syncs=syncs, scratch_bytes=256),
        in_hip(mirror(GRAPH, 256)),
    ]
    executable = load(placed(GRAPH, kernels, [[0, 1], []]))
    if syncs == 2:
        assert all(agree(GRAPH, executable, executable.seed) for executable.seed in range(4))
        return
    with pytest.raises(DeviceError, match="never reach their block sync"):
        executable.run(values())


def tree(wave: int, threads: int) -> tuple[ExecutionPlan, str]:
    """A sum by a tree of `threads` threads, in a vEU of 256; and the kernel's text."""
    graph, plan = _tree(threads, 512)
    other = in_hip(mirror(GRAPH, 256))
    kind = TensorType((SIZE,))
    operators = (*graph.operators, ROperator("m", other.operation, ("y",), ("u",)))
    both = Graph("g", ("x", "y"), ("t", "u"), operators, {**graph.types, "y": kind, "u": kind}, {}, graph.interner)
    kernel = plan.kernels[0]
    plan = replace(placed(both, [kernel, other], [[0, 1], []]), memory=memory(both))
    return plan, emit(kernel, hip(wave), 256).text


@pytest.mark.parametrize(
    ("wave", "threads", "counted"), [(64, 64, True), (64, 128, True), (32, 32, True), (64, 32, False), (32, 16, False)]
)
def test_extra_threads_sync_as_often_or_run_along(wave: int, threads: int, counted: bool) -> None:
    """A wave of which a part leaves would run both sides of the branch: then all threads run the task."""
    plan, text = tree(wave, threads)
    syncs = threads.bit_length()  # one, then one per halving
    assert (f"n < {syncs}; n++) mk_sync();" in text) == counted and "mk_sync_part" not in text
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    executable = load(plan, wave)
    for executable.seed in range(3):
        np.testing.assert_allclose(executable.run({"x": x, "y": values()["x"]})["t"], [x.sum()], rtol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_sync_too_few_or_too_many_is_reported(wrong: int) -> None:
    plan, _ = tree(64, 64)
    program = make_program(plan, hip(64))
    assert "n < 7; n++) mk_sync();" in program.text
    program = replace(program, text=program.text.replace("n < 7; n++) mk", f"n < {7 + wrong}; n++) mk"))
    executable = EmulatorExecutable(make_image(plan, program, {}))
    with pytest.raises(DeviceError, match="never reach their block sync"):
        executable.run({"x": np.ones(512, np.float32), "y": values()["x"]})


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_broken_wait_list_ends_with_a_report(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two vEUs that wait for each other; another input does not help, another program is not disturbed."""
    if not deterministic:
        monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "0.05")
    kernels = [in_hip(mirror(GRAPH, 64))] * 2
    stuck = load(placed(GRAPH, kernels, [[[(1, 1)], 0], [[(0, 1)], 1]]))
    stuck.deterministic = deterministic
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"vEU [01], order [01], waited in vain for vEU [01], .* \(mirror"):
            stuck.run(values())
    assert agree(GRAPH, load(placed(GRAPH, kernels, [[0], [[(0, 0)], 1]])))


def test_foreign_kernels_without_a_count_are_refused() -> None:
    kernels = [in_hip(mirror(GRAPH, 64), num_block_syncs=None), in_hip(mirror(GRAPH, 256))]
    with pytest.raises(LoweringError, match="syncs its 64 threads"):
        load(placed(GRAPH, kernels, [[0, 1], []]))
    with pytest.raises(LoweringError, match="written in 'cuda', not in 'hip'"):
        load(placed(GRAPH, [mirror(GRAPH)] * 2, [[0, 1], []]))
