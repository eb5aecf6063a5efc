"""Find which variant of an rKernel a function is: print the rKernel again for the decoded operands, and compare."""

from __future__ import annotations

from dataclasses import dataclass, field

from rammer.ir.kernel import RKernel
from rammer.ir.tensor import Numbers
from rammer.vdevice.proof.decoded import SCRATCH
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.codegen.slices import VECTOR_BYTES, reading_copies


@dataclass(frozen=True)
class Variants:
    """Texts of rKernels for blocks of `block` threads."""

    dialect: Dialect
    block: int
    _symbols: dict[tuple[object, ...], str] = field(default_factory=dict)

    def calls(self, kernel: RKernel, operands: Numbers, function: str) -> bool:
        """Return whether a function is the rKernel's with operands at these places."""
        outputs, static = len(kernel.operation.outputs), kernel.operation.static
        in_scratch = frozenset(k for k, (base, _) in enumerate(operands.tolist()) if base == SCRATCH)
        copies = frozenset(k - outputs for k in in_scratch if k >= outputs and static[k - outputs])
        loose = frozenset(k for k, (_, at) in enumerate(operands.tolist()) if at % VECTOR_BYTES)
        loose -= {outputs + position for position in copies}
        key = kernel, copies, loose, in_scratch
        if key not in self._symbols:
            used = reading_copies(kernel, copies) if copies else kernel
            self._symbols[key] = emit(used, self.dialect, self.block, loose, in_scratch).symbol
        return self._symbols[key] == function
