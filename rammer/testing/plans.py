"""Small graphs of probe operators, and plans that put each operator where a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rammer.errors import ScheduleError
from rammer.ir.dependency import Dependencies
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations, ROperator, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgramBuilder, TaskUid
from rammer.ir.tensor import Array, DType, TensorId, TensorType
from rammer.plugins import PluginRegistry


class Net:
    """Builds a graph operator by operator, in the order in which they get their numbers."""

    def __init__(self, registry: PluginRegistry, spec: VDeviceSpec) -> None:
        self.registry = registry
        self.spec = spec
        self._operations = Operations(OPS)
        self._operators: list[ROperator] = []
        self._types: dict[TensorId, TensorType] = {}
        self._constants: dict[TensorId, Array] = {}
        self._inputs: list[TensorId] = []
        self._outputs: list[TensorId] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: DType = DType.F32) -> TensorId:
        self._types[name] = TensorType(shape, dtype)
        self._inputs.append(name)
        return name

    def constant(self, value: Array) -> TensorId:
        name = f"constant{len(self._constants)}"
        self._types[name] = TensorType(value.shape, DType(value.dtype.name))
        self._constants[name] = value
        return name

    def add(self, kind: str, *inputs: TensorId, **attrs: Any) -> TensorId:
        operation = self._operations.define(kind, tuple(self._types[i] for i in inputs), attributes(**attrs))
        number = len(self._operators)
        output = f"t{number}"
        self._types[output] = operation.outputs[0]
        self._operators.append(ROperator(f"node{number}", operation, inputs, (output,)))
        return output

    def sum(self, *inputs: TensorId) -> TensorId:
        """Element-wise sum: the quick probe."""
        return self.add("probe_sum", *inputs)

    def spin(self, x: TensorId, rounds: int) -> TensorId:
        """`x` itself, after a while: the slow probe."""
        return self.add("probe_spin", x, rounds=rounds)

    def output(self, tensor: TensorId) -> None:
        self._outputs.append(tensor)

    def graph(self) -> Graph:
        return Graph(
            "probe",
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._operators),
            self._types,
            self._constants,
            self._operations,
        )


def place(net: Net, programs: Sequence[Sequence[tuple[int, int]]]) -> ExecutionPlan:
    """A plan with each operator whole on one vEU: for each rProgram the (operator, vEU) in order; waits follow.

    Where the vDevice synchronises globally, a barrier of all vEUs stands for every wait.
    """
    graph, spec = net.graph(), net.spec
    kernels = []
    for op in graph.operators:
        options = net.registry.rkernels(op.operation, spec)
        if not options:
            raise ScheduleError(
                f"no rKernel computes {op.kind} on {spec.name!r}", hint="offer one through rammer_rkernels"
            )
        kernels.append(min(options, key=lambda k: k.num_rtasks))
    needed = Dependencies(graph, kernels)
    built = []
    for slots in programs:
        builder = RProgramBuilder(spec.num_veus)
        for operator, veu in slots:
            for rtask, waits in enumerate(needed.of(operator)):
                task = TaskUid(operator, rtask)
                here = [t for t in waits if t in builder]
                if spec.sync is SyncModel.GLOBAL and any(_is_open(builder, t, veu) for t in here):
                    builder.sync()
                builder.wait(task, here)
                builder.append(task, veu)
        built.append(builder.build())
    return ExecutionPlan(graph, spec, tuple(kernels), tuple(built), policy="by hand")


def _is_open(builder: RProgramBuilder, task: TaskUid, veu: int) -> bool:
    """Whether `veu` would have to wait for an rTask appended earlier."""
    where = builder.position(task)
    return where.veu != veu and where.order >= builder.known(veu)[where.veu]
