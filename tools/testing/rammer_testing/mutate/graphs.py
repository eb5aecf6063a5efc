"""Define bugs of passes, schedules and memory plans: they change a graph, an rProgram, or places of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rammer.ir.graph import Graph, View
from rammer.ir.operator import ROperator
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot
from rammer.ir.tensor import Array
from rammer_testing.mutate.bug import Bug, afterwards, bug, instead, once

COMMUTATIVE = ("add", "mul", "max", "min", "equal")
BOTH = "rammer.passes:simplify"  # runs first on all devices
LAST = "rammer.passes:mark_static"
BUILD = "rammer.ir.program:RProgramBuilder.build"
MEMORY = "rammer.compiler.compilation:plan_memory"
Lanes = list[list[Slot]]


def _constant(change: Callable[[Array], Array]) -> Callable[[Graph], Graph | None]:
    """Change the largest constant of floats."""

    def changed(graph: Graph) -> Graph | None:
        found = [t for t, v in graph.constants.items() if v.dtype == np.float32 and v.size > 1]
        if not found:
            return None
        name = max(found, key=lambda t: graph.constants[t].size)
        return replace(graph, constants={**graph.constants, name: change(graph.constants[name])})

    return changed


def _sign(value: Array) -> Array:
    value = value.copy()
    at = int(np.abs(value).argmax())
    value.reshape(-1)[at] = -value.reshape(-1)[at]
    return value


def _operator(change: Callable[[Graph, ROperator], ROperator | None]) -> Callable[[Graph], Graph | None]:
    """Change the first operator to which `change` applies."""

    def changed(graph: Graph) -> Graph | None:
        for n, op in enumerate(graph.operators):
            if (other := change(graph, op)) is not None:
                return replace(graph, operators=(*graph.operators[:n], other, *graph.operators[n + 1 :]))
        return None

    return changed


def _exchanged(graph: Graph, op: ROperator) -> ROperator | None:
    """Exchange two operands of one type whose order matters."""
    kinds = [graph.types[t] for t in op.inputs]
    for n, kind in enumerate(kinds):
        for m in range(n):
            if kind == kinds[m] and op.inputs[n] != op.inputs[m] and op.kind not in COMMUTATIVE:
                inputs = list(op.inputs)
                inputs[n], inputs[m] = inputs[m], inputs[n]
                return replace(op, inputs=tuple(inputs))
    return None


def _other(graph: Graph, op: ROperator) -> ROperator | None:
    """Read another tensor of the same type that is computed earlier."""
    before = list(graph.inputs)
    for earlier in graph.operators:
        if earlier is op:
            break
        before += earlier.outputs
    for n, t in enumerate(op.inputs):
        for other in [*before, *graph.constants]:
            if other not in op.inputs and graph.types[other] == graph.types[t]:
                return replace(op, inputs=(*op.inputs[:n], other, *op.inputs[n + 1 :]))
    return None


def _skipped(graph: Graph) -> Graph | None:
    """Leave out an operator whose result has its operand's type."""
    for op in graph.operators:
        simple = len(op.inputs) == len(op.outputs) == 1 and op.outputs[0] not in graph.outputs
        if simple and graph.types[op.inputs[0]] == graph.types[op.outputs[0]]:
            swap = {op.outputs[0]: op.inputs[0]}
            rest = tuple(
                replace(o, inputs=tuple(swap.get(t, t) for t in o.inputs)) for o in graph.operators if o is not op
            )
            return replace(graph, operators=rest)
    return None


def _transposed(graph: Graph) -> Graph | None:
    """Give an output the shape of its transpose."""
    for t in graph.outputs:
        kind = graph.types[t]
        if kind.rank > 1 and kind.shape != kind.shape[::-1] and kind.layout is None:
            return replace(graph, types={**graph.types, t: replace(kind, shape=kind.shape[::-1])})
    return None


def _view(graph: Graph) -> Graph | None:
    """Shift a view by one element within its base."""
    for t, (base, offset) in graph.views.items():
        if offset + graph.types[t].span < graph.types[base].span:
            return replace(graph, views={**graph.views, t: View(base, offset + 1)})
        if offset:
            return replace(graph, views={**graph.views, t: View(base, offset - 1)})
    return None


PASSES = (
    bug("pass", "a constant has one wrong sign", BOTH, afterwards(once(_constant(_sign)))),
    bug(
        "pass",
        "a constant is rounded to 16 bits",
        BOTH,
        afterwards(once(_constant(lambda v: v.astype(np.float16).astype(np.float32)))),
    ),
    bug("pass", "two operands are exchanged", BOTH, afterwards(once(_operator(_exchanged)))),
    bug("pass", "two operands are exchanged, last pass", LAST, afterwards(once(_operator(_exchanged)))),
    bug("pass", "an operator reads another tensor", LAST, afterwards(once(_operator(_other)))),
    bug("pass", "an operator is left out", BOTH, afterwards(once(_skipped))),
    bug("pass", "an output is transposed", LAST, afterwards(_transposed)),
    bug("pass", "a view begins one element away", "rammer.passes:place", afterwards(_view)),
)


def _lanes(change: Callable[[Lanes], bool]) -> Callable[[RProgram], RProgram | None]:
    def changed(program: RProgram) -> RProgram | None:
        lanes = [list(lane) for lane in program.lanes]
        return RProgram(tuple(map(tuple, lanes))) if change(lanes) else None

    return changed


def _waits(change: Callable[[Sequence[Position]], Sequence[Position]]) -> Callable[[Lanes], bool]:
    """Change the waits of barriers."""

    def changed(lanes: Lanes) -> bool:
        before = [list(lane) for lane in lanes]
        for lane in lanes:
            for n, slot in enumerate(lane):
                if isinstance(slot, BarrierRTask) and slot.waits:
                    lane[n] = BarrierRTask(tuple(change(slot.waits)))
        return lanes != before

    return changed


def _last_first(lanes: Lanes) -> bool:
    for lane in lanes:
        if sum(isinstance(s, RTask) for s in lane) > 1 and isinstance(lane[-1], RTask):
            lane.insert(0, lane.pop())
            return True
    return False


def _left_out(lanes: Lanes) -> bool:
    for lane in lanes:
        if lane and isinstance(lane[-1], RTask):
            lane.pop()
            return True
    return False


def _twice(lanes: Lanes) -> bool:
    for lane in lanes:
        if lane and isinstance(lane[0], RTask):
            lane.append(lane[0])
            return True
    return False


def _moved(lanes: Lanes) -> bool:
    if len(lanes) > 1 and lanes[0] and isinstance(lanes[0][-1], RTask):
        lanes[1].insert(0, lanes[0].pop())
        return True
    return False


def _kernels(plan: ExecutionPlan) -> ExecutionPlan | None:
    """Exchange the rKernels of two operators with equally many rTasks."""
    for n, kernel in enumerate(plan.kernels):
        for m in range(n):
            other = plan.kernels[m]
            if other is not kernel and other.num_rtasks == kernel.num_rtasks:
                kernels = list(plan.kernels)
                kernels[n], kernels[m] = other, kernel
                return replace(plan, kernels=tuple(kernels))
    return None


SCHEDULES = (
    bug("schedule", "waits are dropped", BUILD, afterwards(_lanes(_waits(lambda w: w[:-1])))),
    bug(
        "schedule",
        "waits are for one slot less",
        BUILD,
        afterwards(_lanes(_waits(lambda w: [Position(v, max(o - 1, 0)) for v, o in w]))),
    ),
    bug("schedule", "the last rTask of a lane runs first", BUILD, afterwards(_lanes(_last_first))),
    bug("schedule", "an rTask is left out", BUILD, afterwards(_lanes(_left_out))),
    bug("schedule", "an rTask is there twice", BUILD, afterwards(_lanes(_twice))),
    bug("schedule", "an rTask is moved to the front of another lane", BUILD, afterwards(_lanes(_moved))),
    bug("schedule", "two operators have each other's rKernel", "rammer.plugins:_Blamed.schedule", afterwards(_kernels)),
)


def _offsets(change: Callable[[dict[str, int]], bool]) -> Callable[[MemoryPlan], MemoryPlan | None]:
    def changed(memory: MemoryPlan) -> MemoryPlan | None:
        offsets = dict(memory.offsets)
        return replace(memory, offsets=offsets) if change(offsets) else None

    return changed


def _shifted(offsets: dict[str, int]) -> bool:
    """Move every second tensor to 128 bytes lower, so that it overlaps the one before it."""
    names = sorted(offsets, key=lambda t: offsets[t])[1::2]
    for name in names:
        offsets[name] -= 128
    return bool(names)


def _at_zero(offsets: dict[str, int]) -> bool:
    for name in list(offsets)[:2]:
        offsets[name] = 0
    return len(offsets) > 1


MEMORY_PLANS = (
    bug(
        "memory",
        "bytes are reused too early",
        "rammer.planner.memory:Lifetimes.precedes",
        instead(lambda self, first, second: np.ones(np.broadcast(first, second).shape, bool)),
        ("cpu", "amx", "cuda"),
    ),
    bug("memory", "tensors begin 128 bytes too early", MEMORY, afterwards(_offsets(_shifted)), ("cpu", "amx", "cuda")),
    bug("memory", "two tensors lie at byte 0", MEMORY, afterwards(_offsets(_at_zero)), ("cpu", "amx", "cuda")),
    bug(
        "memory",
        "the arena is half as large",
        MEMORY,
        afterwards(lambda m: replace(m, arena_bytes=m.arena_bytes // 2)),
        ("cpu", "amx", "cuda"),
    ),
)

GRAPH_BUGS: tuple[Bug, ...] = (*PASSES, *SCHEDULES, *MEMORY_PLANS)
