"""A wider search: many tilings of a product are considered by their counted work, and few passed on."""

from __future__ import annotations

import pytest
from cpus import CPUS, MadeUp
from kernel_harness import Runner, compare, compile_all, random_inputs

from rammer.cost.issue import near_us
from rammer.cost.work import work
from rammer.ir.device import VDeviceSpec
from rammer.ir.evaluate import evaluate_expr
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.ir.tile import TileProgram
from rammer.kernels import candidates, contraction
from rammer.kernels.problem import Problem

MOST = 4


def product(kind: str) -> Operation:
    operations = Operations(OPS)
    if kind == "conv":
        shapes = (3, 40, 29, 30), (128, 40, 1, 1)
        made = operations.define("conv", tuple(map(TensorType, shapes)), attributes(strides=(1, 1), pads=(0, 0, 0, 0)))
    else:
        made = operations.define("matmul", (TensorType((200, 320)), TensorType((320, 640))), attributes())
    return operations.retype(made, made.inputs, made.outputs, (False, True))


def alone_us(kernel: RKernel, spec: VDeviceSpec) -> float:
    assert isinstance(kernel.body, TileProgram)
    return near_us(work(kernel.body, spec), spec) * -(-kernel.num_rtasks // spec.num_veus)


@pytest.mark.parametrize("cpu", CPUS[:3], ids=str)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_the_cheapest_of_many_are_passed_on(kind: str, cpu: MadeUp) -> None:
    spec, op = cpu.spec, product(kind)
    usual, searched = candidates(op, spec), candidates(op, spec, search=MOST)
    problem = Problem.of(op, spec)
    considered = [problem.kernel(s) for s in contraction.every(problem) if problem.own_packing(s) is not None]
    assert len(considered) >= 16
    known = {k.schedule for k in usual}
    assert [k.schedule for k in searched if k.schedule in known] == [k.schedule for k in usual]
    more = [k for k in searched if k.schedule not in known]
    assert 0 < len(more) < MOST
    dearest = max(alone_us(k, spec) for k in more)
    passed = known | {k.schedule for k in more}
    assert all(alone_us(k, spec) >= dearest for k in considered if k.schedule not in passed)


@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_what_is_passed_on_is_right(kind: str) -> None:
    spec, op = CPUS[0].spec, product(kind)
    built = compile_all({kind: (op, candidates(op, spec, search=MOST))}, spec, check=True)
    inputs = random_inputs(op)
    (want,) = evaluate_expr(op.expr, inputs)
    for kernel, symbol in built.kernels[kind][1]:
        (got,) = Runner(kernel, built.library, symbol, inputs).run()
        compare(got, want, 2e-5, kernel.name)
