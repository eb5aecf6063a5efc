"""Find which variant of an rKernel a function is: print the rKernel again for the decoded operands, and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from rammer.ir.kernel import RKernel
from rammer.ir.tile import TileProgram
from rammer.vdevice.proof.decoded import SCRATCH, Numbers
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.codegen.ready import loading_early
from rammer.vdevice.simt.codegen.slices import VECTOR_BYTES, reading_copies

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Variants:
    """Texts of rKernels for blocks of `block` threads; `rooms`: words per thread that a function loads early.

    `waits(function)`: whether a function waits by itself, as those that load early do.
    """

    dialect: Dialect
    block: int
    rooms: Mapping[str, int]
    waits: Callable[[str], bool]
    _symbols: dict[tuple[object, ...], str] = field(default_factory=dict)

    def early(self, kernel: RKernel, operands: Numbers, function: str) -> frozenset[int] | None:
        """Return the inputs that a function loads before it waits; None if it is not a variant of this rKernel."""
        outputs, static = len(kernel.operation.outputs), kernel.operation.static
        near = [k for k, (base, _) in enumerate(operands.tolist()) if base == SCRATCH]
        copies = frozenset(k - outputs for k in near if k >= outputs and static[k - outputs])
        loose = {k for k, (_, at) in enumerate(operands.tolist()) if at % VECTOR_BYTES}
        loose -= {outputs + position for position in copies}
        for early in self._tries(kernel) if self.waits(function) else (NOTHING,):
            room = self.rooms[function]
            key = kernel, copies, early, room, frozenset(loose), frozenset(near)
            if key not in self._symbols:
                used = reading_copies(kernel, copies) if copies else kernel
                used = loading_early(used, early, room) if early else used
                made = emit(used, self.dialect, self.block, frozenset(loose), frozenset(near))
                self._symbols[key] = made.symbol
            if self._symbols[key] == function:
                return early
        return None

    def _tries(self, kernel: RKernel) -> Iterator[frozenset[int]]:
        """Yield the sets of inputs that may be loaded early: constants, alone or with others."""
        if isinstance(kernel.body, TileProgram):
            static = kernel.operation.static
            constants = frozenset(p for p, known in enumerate(static) if known)
            others = [p for p, known in enumerate(static) if not known]
            for count in range(len(others) + 1):
                for some in combinations(others, count):
                    yield constants | {*some}
                    yield frozenset(some)
