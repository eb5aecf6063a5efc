"""The text of whole kernels as golden files: CUDA, HIP, and codelets of the IPU; cut out of their programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from goldens import Golden

from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RTask, TaskUid
from rammer.kernels import candidates
from rammer.planner.memory import plan_memory
from rammer.vdevice.cuda import spec as cuda
from rammer.vdevice.ipu import kernels as ipu_kernels
from rammer.vdevice.ipu.codegen.build import CODELETS
from rammer.vdevice.ipu.codegen.build import emit as emit_ipu
from rammer.vdevice.ipu.codegen.codelets import PRELUDE
from rammer.vdevice.ipu.spec import make_spec, parse_arch
from rammer.vdevice.rocm import spec as rocm
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.codegen.image import make_program
from rammer.vdevice.simt.codegen.prelude import CUDA

TILES = parse_arch("gc2:4")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def matmul(rows: int, terms: int, columns: int) -> Graph:
    b = GraphBuilder("matmul")
    b.output(b.add("matmul", b.input("x", (rows, terms)), b.constant(ones(terms, columns))))
    return b.build()


def conv() -> Graph:
    b = GraphBuilder("conv")
    x, w, bias = b.input("x", (1, 8, 8, 8)), b.constant(ones(16, 8, 3, 3)), b.constant(ones(16))
    b.output(b.add("conv", x, w, bias, pads=(1, 1, 1, 1)))
    return b.build()


def cell() -> Graph:
    b = GraphBuilder("cell")
    gates, h, c = b.input("gx", (1, 4, 64)), b.input("h", (1, 64)), b.input("c", (1, 64))
    for state in b.add("lstm_cell", gates, h, c, b.constant(ones(4, 64, 64))):
        b.output(state)
    return b.build()


def add() -> Graph:
    b = GraphBuilder("add")
    b.output(b.add("add", b.input("a", (4, 16)), b.input("b", (16,))))
    return b.build()


def plan_of(graph: Graph, spec: VDeviceSpec, offered: Callable[..., list[RKernel]]) -> ExecutionPlan:
    """The graph's one operator by its first candidate, rTasks dealt out among the vEUs."""
    (op,) = graph.operators
    kernel = offered(op.operation, spec)[0]
    tasks = [RTask(TaskUid(0, n)) for n in range(kernel.num_rtasks)]
    lanes = tuple(tuple(tasks[veu :: spec.num_veus]) for veu in range(spec.num_veus))
    plan = ExecutionPlan(graph, spec, (kernel,), (RProgram(lanes),), "hand")
    return replace(plan, memory=plan_memory(plan))


def device_function(text: str) -> str:
    """The worker and the function that calls it, of a program that has one kernel."""
    (found,) = re.findall(r"^INLINE void k_\w+_body\(.*?^MK_TASK .*?^}\n", text, re.M | re.S)
    return str(found)


@pytest.mark.parametrize("graph", [matmul(32, 64, 64), conv(), cell()], ids=lambda g: g.name)
def test_cuda(golden: Golden, graph: Graph) -> None:
    plan = plan_of(graph, cuda.make_spec(cuda.choose_gpu("sm_90"), 4), candidates)
    golden.check(device_function(make_program(plan, CUDA).text))


@pytest.mark.parametrize(
    ("graph", "gpu"), [(matmul(32, 64, 64), "mi50"), (matmul(256, 128, 128), "mi300x"), (cell(), "mi50")],
    ids=["matmul", "matmul_on_matrix_cores", "cell"],
)  # fmt: skip
def test_hip(golden: Golden, graph: Graph, gpu: str) -> None:
    spec = rocm.make_spec(rocm.choose_gpu(gpu), 4)
    text = device_function(
        make_program(plan_of(graph, spec, candidates), hip(spec.subgroup_size, spec.instructions)).text
    )
    assert ("mk_mfma" in text) == (gpu == "mi300x")
    golden.check(text)


@pytest.mark.parametrize("graph", [matmul(8, 16, 16), add()], ids=lambda g: g.name)
def test_ipu_codelet(golden: Golden, graph: Graph) -> None:
    _, texts = emit_ipu(plan_of(graph, make_spec(TILES), ipu_kernels.kernels), TILES)
    assert texts[CODELETS].startswith(PRELUDE)
    golden.check(texts[CODELETS].removeprefix(PRELUDE))
