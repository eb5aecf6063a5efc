"""Expressions and tile programs as people read them: every statement, and every operator's expression."""

from __future__ import annotations

from dataclasses import replace

import pytest
from goldens import Golden
from rammer_testing.generate import random_graph

from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import loads
from rammer.ir.listing import print_expr, print_rkernels, print_tile_program
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RTask, TaskUid
from rammer.ir.tensor import TensorType
from rammer.ir.tile import statements
from rammer.kernels import candidates

SPEC = VDeviceSpec("cpu", num_veus=2, lanes=8, registers=16, clock_ghz=3.1)
THREADS = replace(SPEC, execution=Execution.SIMT, lanes=4, max_threads=64, subgroup_size=32, registers=64)


def conv() -> Operation:
    kinds = TensorType((1, 8, 14, 14)), TensorType((16, 8, 3, 3)), TensorType((16,))
    made = Operations(OPS)
    op = made.define("conv", kinds, attributes(pads=(1, 1, 1, 1), strides=(2, 2)))
    return made.retype(op, kinds, op.outputs, (False, True, True))


def softmax() -> Operation:
    return Operations(OPS).define("softmax", (TensorType((8, 200)),), attributes(axis=1))


@pytest.mark.parametrize(
    ("op", "spec"), [(conv(), SPEC), (softmax(), THREADS)], ids=["conv of one thread", "softmax of many threads"]
)
def test_an_rkernel(golden: Golden, op: Operation, spec: VDeviceSpec) -> None:
    kernel = candidates(op, spec)[0]
    golden.check(print_expr(op.expr) + print_tile_program(kernel.body))


@pytest.mark.parametrize("seed", range(20))
def test_expressions_and_programs_name_what_they_read(seed: int) -> None:
    for op in random_graph(seed).operators:
        lines = print_expr(op.operation.expr).splitlines()
        for stage in op.operation.expr.stages:
            line = next(line for line in lines if line.startswith(f"  {stage.name}["))
            assert all(f"{load.tensor}[" in line for load, _ in loads(stage.body))
        for spec in (SPEC, THREADS):
            program = candidates(op.operation, spec)[0].body
            text = print_tile_program(program)
            assert len(text.splitlines()) == 1 + len(program.arguments) + len(program.scratch) + sum(
                1 for _ in statements(program.body)
            )


def test_what_kernels_share_is_told_once_and_names_cannot_break_lines() -> None:
    b = GraphBuilder("shared")
    x = b.input("x", (4, 8))
    b.output(b.add("relu", b.add("relu", x, name="first"), name="second\n  forged"))
    graph = b.build()
    op = graph.operators[0].operation
    kernels = tuple(candidates(op, SPEC)[:1]) * 2
    lanes = ((RTask(TaskUid(0, 0)), RTask(TaskUid(1, 0))), ())
    plan = ExecutionPlan(graph, SPEC, kernels, (RProgram(lanes),))
    text = print_rkernels(plan)
    assert text.count("expression relu") == text.count("program relu") == 1
    assert f"rkernel {kernels[0].name} of first and 1 more" in text
    other = replace(plan, kernels=(kernels[0], candidates(op, SPEC)[0]))
    text = print_rkernels(other)
    assert text.count("expression relu") == 1 and "expression and program as above" in text
    assert "of second\N{REPLACEMENT CHARACTER}  forged" in text
