"""Plans for the CPU vDevice made by hand: graphs of two little operators, kernels in C, a memory plan without reuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Dynamic, Load, Stage, TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Attrs, OpDef, Operation, Operations, ROperator
from rammer.ir.plan import ExecutionPlan, MemoryPlan
from rammer.ir.program import RProgram, RProgramBuilder, TaskUid
from rammer.ir.tensor import Array, DType, TensorType
from rammer.ir.tile import TaskDigit

TILE = 16

# o[i] = a[i] + 2 * a[n-1-i]: every tile needs the whole input; a spin makes one rTask slow
MIRROR = """
void mirror(char *const *args, char *scratch, long rtask, int *status) {
  float *o = (float *)args[0]; const float *a = (const float *)args[1];
  for (volatile int spin = 0; spin < (rtask == 0 ? %(spin)d : 0); spin++);
  for (long i = rtask * %(tile)d; i < (rtask + 1) * %(tile)d; i++) o[i] = a[i] + 2 * a[%(size)d - 1 - i];
}
"""

ADD = """
void add(char *const *args, char *scratch, long rtask, int *status) {
  float *o = (float *)args[0]; const float *a = (const float *)args[1], *b = (const float *)args[2];
  for (long i = rtask * %(tile)d; i < (rtask + 1) * %(tile)d; i++) o[i] = a[i] + b[i];
}
"""

PICK = """
#include <stdint.h>
void pick(char *const *args, char *scratch, long rtask, int *status) {
  float *o = (float *)args[0]; const float *a = (const float *)args[1]; const int64_t *n = (const int64_t *)args[2];
  for (long i = rtask * %(tile)d; i < (rtask + 1) * %(tile)d; i++) {
    if (n[i] < 0 || n[i] >= %(size)d) *status = 1;
    else o[i] = a[n[i]];
  }
}
"""


def _mirror(a: TensorType) -> TensorExpr:
    (size,) = a.shape
    i = var("i")
    body = Load("a", (i,)) + Load("a", (i * -1 + (size - 1),)) * 2.0
    return TensorExpr("mirror", (("a", a),), (Stage("o", (("i", size),), body),), (("o", a),))


def _add(a: TensorType, b: TensorType) -> TensorExpr:
    body = Load("a", (var("i"),)) + Load("b", (var("i"),))
    return TensorExpr("add", (("a", a), ("b", b)), (Stage("o", (("i", a.shape[0]),), body),), (("o", a),))


def _pick(a: TensorType, n: TensorType) -> TensorExpr:
    body = Load("a", (var("i") * 0,), (Dynamic(0, Load("n", (var("i"),)), a.shape[0]),))
    return TensorExpr("pick", (("a", a), ("n", n)), (Stage("o", (("i", n.shape[0]),), body),), (("o", a),))


def interner() -> Operations:
    return Operations({n: OpDef(n, f) for n, f in (("mirror", _mirror), ("add", _add), ("pick", _pick))})


def foreign(operation: Operation, text: str, *, tile: int = TILE, spin: int = 0, **more: object) -> RKernel:
    """A kernel in C of one tile of `tile` elements per rTask."""
    size = operation.outputs[0].shape[0]
    digits = (TaskDigit("i", tile, size // tile, 1),)
    body = text % {"tile": tile, "size": size, "spin": spin}
    return RKernel(f"{operation.kind}_c", operation, ForeignSource("c", operation.kind, body, digits, **more))  # type: ignore[arg-type]


TEXTS = {"mirror": MIRROR, "add": ADD, "pick": PICK}


class Net:
    """Builds a graph over float vectors of one size."""

    def __init__(self, size: int = 64) -> None:
        self.type = TensorType((size,))
        self.types: dict[str, TensorType] = {"x": self.type}
        self.inputs: tuple[str, ...] = ("x",)
        self.constants: dict[str, Array] = {}
        self.operators: list[ROperator] = []
        self.interner = interner()

    def constant(self, name: str, value: Array) -> str:
        self.types[name] = TensorType(value.shape, DType(value.dtype.name))
        self.constants[name] = value
        return name

    def op(self, kind: str, *inputs: str, attrs: Attrs = ()) -> str:
        operation = self.interner.define(kind, tuple(self.types[t] for t in inputs), attrs)
        name = f"t{len(self.operators)}"
        self.types[name] = operation.outputs[0]
        self.operators.append(ROperator(f"node {name}", operation, inputs, (name,)))
        return name

    def graph(self, *outputs: str) -> Graph:
        return Graph("net", self.inputs, outputs, tuple(self.operators), self.types, self.constants, self.interner)


def reference(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    values = dict(graph.constants) | dict(inputs)
    for op in graph.operators:
        a = [values[t] for t in op.inputs]
        match op.kind:
            case "mirror":
                values[op.outputs[0]] = a[0] + 2 * a[0][::-1]
            case "add":
                values[op.outputs[0]] = a[0] + a[1]
            case "pick":
                values[op.outputs[0]] = a[0][a[1]]
    return {t: values[t] for t in graph.outputs}


def memory(graph: Graph) -> MemoryPlan:
    """Every tensor has bytes of its own."""
    offsets, at = {}, 0
    for tensor in dict.fromkeys([*graph.inputs, *(t for op in graph.operators for t in op.outputs)]):
        if graph.storage(tensor).root == tensor:
            offsets[tensor] = at
            at += -(-graph.types[tensor].nbytes // 64) * 64
    return MemoryPlan(offsets, at)


def one_program(graph: Graph, kernels: Sequence[RKernel], num_veus: int) -> RProgram:
    """rTasks dealt out in turn, each waiting for all rTasks of its producers."""
    builder = RProgramBuilder(num_veus)
    turn = 0
    for n, op in enumerate(graph.operators):
        producers = {graph.producers[t] for t in op.inputs if t in graph.producers}
        for r in range(kernels[n].num_rtasks):
            needed = [TaskUid(p, q) for p in sorted(producers) for q in range(kernels[p].num_rtasks)]
            if needed:
                builder.wait(TaskUid(n, r), on=needed)
            builder.append(TaskUid(n, r), turn % num_veus)
            turn += 1
    return builder.build()


def many_programs(graph: Graph, kernels: Sequence[RKernel], num_veus: int) -> tuple[RProgram, ...]:
    """One rProgram per operator."""
    programs = []
    for n in range(len(graph.operators)):
        builder = RProgramBuilder(num_veus)
        for r in range(kernels[n].num_rtasks):
            builder.append(TaskUid(n, r), r % num_veus)
        programs.append(builder.build())
    return tuple(programs)


def make_plan(graph: Graph, spec: VDeviceSpec, *, split: bool = False, spin: int = 0) -> ExecutionPlan:
    made = {op.operation: foreign(op.operation, TEXTS[op.kind], spin=spin) for op in graph.operators}
    kernels = tuple(made[op.operation] for op in graph.operators)
    build = many_programs if split else lambda *a: (one_program(*a),)
    return ExecutionPlan(graph, spec, kernels, build(graph, kernels, spec.num_veus), "hand", memory(graph))


def chain(length: int = 6, size: int = 64) -> Graph:
    """Mirrors and adds with a constant, in turn."""
    net = Net(size)
    c = net.constant("c", np.linspace(-1, 1, size, dtype=np.float32))
    t = "x"
    for n in range(length):
        t = net.op("mirror", t) if n % 2 == 0 else net.op("add", t, c)
    return net.graph(t)


def hanging(spec: VDeviceSpec) -> ExecutionPlan:
    """A plan whose second rTask never ends."""
    net = Net()
    plan = make_plan(net.graph(net.op("mirror", "x")), spec)
    text = "void mirror(char **args, char *s, long rtask, int *status) { while (rtask == 1) *(volatile int *)status; }"
    return replace(plan, kernels=(foreign(plan.kernels[0].operation, text),))
