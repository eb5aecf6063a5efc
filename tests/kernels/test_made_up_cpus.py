"""Ordinary layers at their real sizes on CPUs that are made up: every operation has rKernels that fit and are right."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from cpus import MadeUp, on_some_cpu, on_three_cpus
from kernel_harness import Runner, compare, compile_all, random_inputs
from layers import LAYERS, layer
from stages import operations

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_box
from rammer.ir.tensor import Array
from rammer.ir.tile import TileProgram
from rammer.kernels import candidates


def offered(name: str, spec: VDeviceSpec) -> dict[str, tuple[Operation, list[RKernel]]]:
    """Every operation that a layer comes to on a device, and its candidates."""
    return {f"{name}: {n} {op.kind}": (op, candidates(op, spec)) for n, op in enumerate(operations(layer(name), spec))}


@pytest.mark.parametrize(("name", "cpu"), on_three_cpus(LAYERS), ids=str)
def test_some_candidate_fits_and_all_compute_every_element_once(name: str, cpu: MadeUp) -> None:
    spec = cpu.spec
    for op, kernels in offered(name, spec).values():
        assert min(k.scratch_bytes for k in kernels) <= spec.scratch_bytes, op.kind
        for kernel in kernels:
            assert isinstance(kernel.body, TileProgram)
            arguments = kernel.body.arguments[kernel.body.num_outputs :]
            for buffer, kind in zip(arguments, kernel.input_types(), strict=True):
                assert buffer.size * kind.element_bytes == kind.nbytes, f"{kernel.name}: {buffer.name} is {kind}"
            boxes = [tuple(kernel.box(task).values()) for task in range(kernel.num_rtasks)]
            boxes = [box for box in boxes if all(low < high for low, high in box)]
            assert len(set(boxes)) == len(boxes), kernel.name
            elements = sum(prod(high - low for low, high in box) for box in boxes)
            assert elements == prod(extent for _, extent in op.expr.root.axes), kernel.name


@pytest.mark.parametrize(("name", "cpu"), on_some_cpu(LAYERS), ids=str)
def test_candidates_compute_the_expression(name: str, cpu: MadeUp) -> None:
    """On the first, a middle and the last rTask; every access is checked."""
    spec = cpu.spec
    built = compile_all(offered(name, spec), spec, check=True)
    for op, kernels in built.kernels.values():
        inputs = random_inputs(op)
        for kernel, symbol in kernels:
            runner = Runner(kernel, built.library, symbol, inputs)
            for task in sorted({0, kernel.num_rtasks // 2, kernel.num_rtasks - 1}):
                runner(task)
                box = kernel.box(task)
                inside = tuple(slice(*box[axis]) for axis, _ in op.expr.root.axes)
                for got, want in zip(runner.results(), evaluate_box(op.expr, inputs, box), strict=True):
                    found = but_for_ties(got[inside], want) if "round" in op.kind.split("+") else got[inside]
                    compare(found, want, 2e-5, f"{kernel.name}, rTask {task}")
            assert runner.context.status == 0, kernel.name


def but_for_ties(got: Array, want: Array) -> Array:
    """What was rounded to a step, where a few sums at half of one, in another order, went the other way."""
    apart, noise = np.abs(got - want), 2e-5 * np.abs(want).max()
    steps = np.diff(np.unique(want))
    assert (apart > noise).mean() < 1e-3 and apart.max() <= noise + min(steps, default=0.0)
    return np.where(apart > noise, want, got)
