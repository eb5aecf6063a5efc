"""A wider search: many tilings of a product are considered by their counted work, and few passed on."""

from __future__ import annotations

import pytest
from cpus import CPUS, MadeUp
from kernel_harness import Runner, compare, compile_all, random_inputs

from rammer.cost.estimate import counted_us
from rammer.ir.evaluate import evaluate_expr
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


@pytest.mark.parametrize("cpu", CPUS[:3], ids=str)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_the_cheapest_of_many_are_passed_on(kind: str, cpu: MadeUp) -> None:
    spec, op = cpu.spec, product(kind)
    usual, searched = candidates(op, spec), candidates(op, spec, search=MOST)
    problem = Problem.of(op, spec)
    considered = {
        str(s): problem.alone_us(s, spec.num_veus)
        for s in contraction.every(problem)
        if problem.own_packing(s) is not None
    }
    assert len(considered) >= 16
    assert kind == "conv" or any(s.name.endswith("_o1") for s in contraction.every(problem)), "orders, too"
    known = {k.schedule for k in usual}
    assert [k.schedule for k in searched if k.schedule in known] == [k.schedule for k in usual]
    more = {k.schedule for k in searched} - known
    assert 0 < len(more) < MOST
    dearest = max(considered[s] for s in more)
    assert all(us >= dearest for s, us in considered.items() if s not in known | more)


@pytest.mark.parametrize("cpu", CPUS[:3], ids=str)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_drafts_count_about_as_what_they_become(kind: str, cpu: MadeUp) -> None:
    problem = Problem.of(product(kind), cpu.spec)
    for schedule in [s for s in contraction.every(problem) if problem.own_packing(s) is not None][::4]:
        program = problem.kernel(schedule).body
        assert isinstance(program, TileProgram)
        full_us = counted_us(program, cpu.spec, 0) * -(-program.num_rtasks // cpu.num_veus)
        assert 0.99 * full_us <= problem.alone_us(schedule, cpu.num_veus) <= 1.6 * full_us, schedule.name


@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_what_is_passed_on_is_right(kind: str) -> None:
    spec, op = CPUS[0].spec, product(kind)
    built = compile_all({kind: (op, candidates(op, spec, search=MOST))}, spec, check=True)
    inputs = random_inputs(op)
    (want,) = evaluate_expr(op.expr, inputs)
    for kernel, symbol in built.kernels[kind][1]:
        (got,) = Runner(kernel, built.library, symbol, inputs).run()
        compare(got, want, 2e-5, kernel.name)
