"""Represent a Poplar program as data: variables with tiles, vertices in compute sets, and the order of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.remembered import remembered
from rammer.ir.tensor import Array, DType, TensorId
from rammer.vdevice.ipu.codegen.access import Levels, Pattern, accesses
from rammer.vdevice.ipu.codegen.codelets import EmittedCodelet, codelets
from rammer.vdevice.ipu.spec import IpuModel

Homes: TypeAlias = NDArray[np.int32]  # the tile of every element
Numbers: TypeAlias = NDArray[np.int64]
Location: TypeAlias = tuple[int, int]  # (variable, first element)


@dataclass(frozen=True)
class Variable:
    """A variable of the Poplar graph: a memory owner, or a constant in one layout."""

    name: str
    dtype: DType
    count: int
    home: Homes
    value: Array | None = None  # of a constant, as the tile holds it
    produced: Homes = field(default_factory=lambda: np.zeros(0, np.int32))  # -1 where no vertex writes

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class VertexTable:
    """Vertices shared by all operators of one kernel: per rTask a class (-1: idle), and its patterns."""

    classes: tuple[EmittedCodelet, ...]
    levels: tuple[tuple[Levels, ...], ...]  # by class and argument
    sizes: tuple[int, ...]  # elements of each argument, outputs first
    num_outputs: int
    chosen: tuple[int, ...]
    patterns: tuple[tuple[Pattern, ...], ...]
    flops: int  # of a vertex


@dataclass(frozen=True, eq=False)
class OperatorVertices:
    """Vertices of one operator: their operands, and by rTask the compute set and tile."""

    kind: str
    table: VertexTable
    arguments: tuple[Location, ...]
    sets: Numbers
    tiles: Numbers


@dataclass(frozen=True)
class PoplarProgram:
    """A plan as a Poplar program. `steps`: compute sets in execution order; `ports`: graph inputs and outputs."""

    plan: ExecutionPlan
    arch: IpuModel
    variables: tuple[Variable, ...]
    groups: tuple[OperatorVertices, ...]
    num_sets: int
    steps: tuple[int, ...]
    ports: dict[TensorId, Location]

    @property
    def num_vertices(self) -> int:
        return sum(sum(c >= 0 for c in g.table.chosen) for g in self.groups)

    def codelets(self) -> Iterator[EmittedCodelet]:
        """Yield the vertex classes of all groups."""
        for table in dict.fromkeys(g.table for g in self.groups):
            yield from table.classes


@remembered(4096)
def vertex_table(kernel: RKernel) -> VertexTable:
    """Return the vertices of a kernel's rTasks. Raises LoweringError."""
    table, kinds = accesses(kernel), kernel.argument_types()
    return VertexTable(
        codelets(kernel),
        tuple(v.levels for v in table.variants),
        tuple(prod(kind.physical_shape) for kind in kinds),
        len(kernel.operation.outputs),
        table.chosen,
        table.patterns,
        round(flops(kernel.operation.expr) / max(kernel.num_rtasks, 1)),
    )


def runs_of(home: Homes) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, tile) of runs on one tile; elements of tile -1 are left out."""
    if not home.size:
        return
    cuts = np.flatnonzero(np.diff(home)) + 1
    starts, ends = np.append(0, cuts), np.append(cuts, home.size)
    for low, high in zip(starts.tolist(), ends.tolist(), strict=True):
        if home[low] >= 0:
            yield low, high, int(home[low])
