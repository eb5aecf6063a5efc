"""rKernels from schedules: `candidates` proposes tilings of an operation for a vDevice."""

from __future__ import annotations

from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.kernels import generic
from rammer.kernels.problem import Problem


def candidates(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """One to six rKernels of `operation`, the best guess first. Raises LoweringError if there is none."""
    problem = Problem.of(operation, spec)
    return [problem.kernel(schedule) for schedule in generic.schedules(problem)]
