"""Build small graphs of probe operators, and plans that place each operator where a test needs it."""

from __future__ import annotations

from collections.abc import Sequence

from rammer.errors import ScheduleError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgramBuilder, TaskUid
from rammer.ir.tensor import TensorId
from rammer.plugins import PluginRegistry


class Net(GraphBuilder):
    """Graph builder that numbers operators in the order in which they are added."""

    def __init__(self, registry: PluginRegistry, spec: VDeviceSpec) -> None:
        super().__init__("probe")
        self.registry = registry
        self.spec = spec

    def sum(self, *inputs: TensorId) -> TensorId:
        """Add an element-wise sum: the fast probe."""
        return str(self.add("probe_sum", *inputs))

    def spin(self, x: TensorId, rounds: int) -> TensorId:
        """Return `x` itself, after `rounds` rounds: the slow probe."""
        return str(self.add("probe_spin", x, rounds=rounds))


def place(net: Net, programs: Sequence[Sequence[tuple[int, int]]]) -> ExecutionPlan:
    """Return a plan with each operator whole on one vEU; `programs`: per rProgram the (operator, vEU) in order.

    Waits follow from dependencies. Where the vDevice synchronises globally, each wait becomes a barrier of all vEUs.
    """
    graph, spec = net.build(), net.spec
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
    """Return whether `veu` would have to wait for an rTask appended earlier."""
    where = builder.position(task)
    return where.veu != veu and where.order >= builder.known(veu)[where.veu]
