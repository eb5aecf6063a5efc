"""Attention in one rKernel: right at odd sizes on several CPUs, proven, and its weights only in scratch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attentions import Attention, drawn
from cpus import CPUS, MadeUp, runnable
from kernel_harness import SLOW_SPEC, SPEC, check_compiled, compile_all
from rammer_testing.mutate.tiles import mutants
from stages import operations

import rammer
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.ir.kernel import RKernel, Tuning
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tile import TileProgram
from rammer.ir.verify.kernel import prove, proven
from rammer.kernels import candidates
from rammer.runtime import measure

NARROW = replace(SLOW_SPEC, arch=runnable("x86-64-avx2"), lanes=8, registers=16, scratch_bytes=1 << 15)
# nearest caches so small that matrices are copied in panels: both, or one where scratch has no room for more
PANELS = replace(SPEC, memory=(MemoryLevel("L1", 512, "veu", 500.0), SPEC.memory[1]))
FEW_PANELS = replace(NARROW, memory=PANELS.memory)
SPECS = {"two vEUs": SPEC, "three": SLOW_SPEC, "small": NARROW, "panels": PANELS, "few panels": FEW_PANELS}
ENCODER = Attention(1, 6, 1500, 1500, 64, 64)


def operation(attention: Attention, spec: VDeviceSpec = SPEC) -> Operation:
    (op,) = (op for op in operations(attention.graph(), spec) if "softmax" in op.kind)
    return op


def whole_rows(kernel: RKernel, attention: Attention) -> int:
    """How many rows of weights scratch holds."""
    assert isinstance(kernel.body, TileProgram)
    return max(b.size for b in kernel.body.scratch) // attention.length


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_attention_is_right(spec: VDeviceSpec) -> None:
    """Every access of every rTask is checked, and rTasks write what is theirs."""
    cases = {str(seed): operation(drawn(seed), spec) for seed in range(10)}
    kernels = {name: (op, candidates(op, spec)) for name, op in cases.items()}
    built = compile_all(kernels, spec, check=True)
    for name in kernels:
        check_compiled(built, name)


@pytest.mark.parametrize("seed", range(12))
def test_attention_is_proven(seed: int) -> None:
    for spec in SPECS.values():
        for kernel in candidates(operation(drawn(seed), spec), spec, Tuning(tasks=spec.num_veus * 2)):
            assert not proven(kernel)[1], f"{kernel.name}: {proven(kernel)[1][0]}"
            assert kernel.fits(spec)


def test_the_longest_sums_of_sums_are_proven() -> None:
    """1500 weights, each of 64 terms, for one element."""
    for kernel in candidates(operation(ENCODER), SPEC):
        assert not prove(kernel)


def test_large_matrices_are_copied_in_panels() -> None:
    """Of 32 columns, each in one piece: both, or the one that is turned where scratch has room for no more."""
    small, large = operation(Attention(1, 4, 32, 32, 64, 64)), operation(ENCODER)

    def panels(op: Operation, spec: VDeviceSpec) -> set[int]:
        return {kernel.schedule.count("/32%0 ") for kernel in candidates(op, spec)}

    assert panels(small, SPEC) == {0} and panels(small, PANELS) == {2}
    assert panels(large, replace(SPEC, scratch_bytes=1 << 20)) == {2}
    assert panels(large, replace(SPEC, scratch_bytes=600 << 10)) == {1}


@pytest.mark.parametrize("cpu", CPUS, ids=str)
@pytest.mark.parametrize("attention", [ENCODER, Attention(1, 3, 197, 197, 64, 64), Attention(64, 3, 49, 49, 32, 32)])
def test_weights_stay_in_scratch(attention: Attention, cpu: MadeUp) -> None:
    """By blocks of rows, on every CPU."""
    spec = cpu.spec
    for kernel in candidates(operation(attention, spec), spec):
        assert kernel.fits(spec)
        assert 8 <= whole_rows(kernel, attention) <= max(attention.rows, 80)


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_programs_compute_attention(target: str) -> None:
    for seed in (4, 11, 21):
        graph = drawn(seed).graph()
        with rammer.compile(graph, target, tune_seconds=0) as program:
            inputs = measure.random_inputs(program.inputs, seed)
            np.testing.assert_allclose(
                program.run(inputs)["y"], evaluate_graph(graph, inputs)["y"], rtol=1e-4, atol=1e-5
            )


def test_a_changed_number_is_found() -> None:
    kernel = candidates(operation(Attention(1, 2, 26, 37, 16, 16, mask="all")), SLOW_SPEC)[0]
    changed = list(mutants(kernel, 60, seed=1))
    found = sum(bool(proven(mutant)[1]) for _, mutant in changed)
    assert found >= 0.9 * len(changed)
