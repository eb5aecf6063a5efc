"""SIMT programs for tests: plans of hand-made kernels with any number of threads, and models under every policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from handmade import Net, memory, reference

from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.ir.tensor import Array
from rammer.ir.tile import TaskDigit
from rammer.vdevice.base import Image
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable

SIZE = 64


def spec(num_veus: int = 2) -> VDeviceSpec:
    return make_spec(choose_gpu("sm_90"), num_veus)


# o[i] = a[i] + 2 * a[n-1-i], one element per thread; a spin makes rTask 0 slow
MIRROR = """
static __device__ void mirror_{threads}(void *const *args, char *scratch, int rtask, int tid, int *status) {{
  float *o = (float *)args[0]; const float *a = (const float *)args[1];
  for (volatile int spin = 0; spin < (rtask == 0 ? {spin} : 0); spin = spin + 1);
  for (int i = rtask * {tile} + tid; i < (rtask + 1) * {tile}; i += {threads}) o[i] = a[i] + 2 * a[{last} - i];
}}
"""


def mirror(graph: Graph, threads: int = 32, tile: int = SIZE, spin: int = 0, text: str = MIRROR) -> RKernel:
    operation = next(op.operation for op in graph.operators if op.kind == "mirror")
    body = text.format(threads=threads, tile=tile, spin=spin, last=SIZE - 1)
    digits = (TaskDigit("i", tile, SIZE // tile, 1),)
    source = ForeignSource(
        "cuda", f"mirror_{threads}", body, digits, threads, scratch_bytes=4 * threads, num_block_syncs=0
    )
    return RKernel(f"mirror_{threads}", operation, source)


def chain(length: int) -> Graph:
    net, t = Net(SIZE), "x"
    for _ in range(length):
        t = net.op("mirror", t)
    return net.graph(t)


def placed(
    graph: Graph, kernels: Sequence[RKernel], lanes: Sequence[Sequence[object]], num_veus: int = 2
) -> ExecutionPlan:
    """A plan of one rProgram: a slot is an operator number (its rTask 0), or a list of (vEU, order) to wait for."""
    made = tuple(
        tuple(
            RTask(TaskUid(slot, 0)) if isinstance(slot, int) else BarrierRTask(tuple(Position(*w) for w in slot))  # type: ignore[union-attr]
            for slot in lane
        )
        for lane in lanes
    )
    return ExecutionPlan(graph, spec(len(lanes)), tuple(kernels), (RProgram(made),), "hand", memory(graph))


def image(plan: ExecutionPlan) -> Image:
    return make_image(plan, make_program(plan, CUDA), {})


def load(plan: ExecutionPlan, **options: object) -> EmulatorExecutable:
    return EmulatorExecutable(image(plan), **options)  # type: ignore[arg-type]


def values(seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)}


def agree(graph: Graph, executable: EmulatorExecutable, seed: int = 0) -> bool:
    inputs = values(seed)
    found, wanted = executable.run(inputs), reference(graph, inputs)
    return all(np.allclose(found[n], v, rtol=1e-5) for n, v in wanted.items())
