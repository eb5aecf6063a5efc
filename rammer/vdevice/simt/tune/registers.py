"""Read the registers of single rKernels from the compiler: each is a kernel of its own, several per text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rammer.ir.kernel import RKernel
from rammer.ir.tile import Alloc, Body, TileProgram, children, contains
from rammer.vdevice.base import Progress, Registers
from rammer.vdevice.simt.codegen.megakernel import task_call
from rammer.vdevice.simt.codegen.prelude import Dialect, prelude
from rammer.vdevice.simt.codegen.printer import EmittedFunction, emit, in_language
from rammer.vdevice.simt.codegen.table import header_bytes
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.toolchain import in_parallel, parallel_jobs

BATCH = 8  # kernels of one compiler call
ARGUMENTS = 16
Compile = Callable[[str], MachineCode]


def read_registers(
    kernels: Sequence[RKernel], dialect: Dialect, budget_s: float, progress: Progress, compile: Compile
) -> dict[RKernel, Registers]:
    """Return registers of the rKernels in the dialect's language, compiled for blocks that hold any of them.

    rKernels with low register pressure are left out, and those that the budget does not reach. Raises ToolchainError.
    """
    wanted = in_language(kernels, dialect)
    block = -(-max((k.num_threads for k in wanted), default=1) // dialect.subgroup_size) * dialect.subgroup_size
    wanted = [k for k in wanted if not _holds_little(k, dialect)]
    emitted = {k: emit(k, dialect, block) for k in wanted}
    distinct = list({e.symbol: e for e in emitted.values()}.values())
    batches = [distinct[n : n + BATCH] for n in range(0, len(distinct), BATCH)]
    deadline = time.monotonic() + budget_s
    found: dict[str, KernelResources] = {}

    def read(batch: list[EmittedFunction]) -> Mapping[str, KernelResources]:
        return compile(_text(batch, dialect, block)).kernels if time.monotonic() < deadline else {}

    for done, (_, part) in enumerate(in_parallel(read, batches, parallel_jobs()), 1):
        found |= part
        progress("registers", done, len(batches))
    needs = ((k, found[_entry(e)]) for k, e in emitted.items() if _entry(e) in found)
    return {k: Registers(own.registers, own.spill_bytes) for k, own in needs}


def _holds_little(kernel: RKernel, dialect: Dialect) -> bool:
    """Return whether a thread's values always fit: point-wise on a limited number of operands, or small staged sums."""
    body = kernel.program
    if not isinstance(body, TileProgram):
        return False
    if not contains(body.body, Alloc):
        return len(body.arguments) <= ARGUMENTS
    return bool(body.scratch) and _words(body.body) <= dialect.fits // dialect.veus_per_sm**2


def _words(body: Body) -> int:
    """Return the most elements of register buffers that are live at once."""
    own = (s.buffer.size if isinstance(s, Alloc) else 0 for s in body)
    return max((size + _words(children(s)) for size, s in zip(own, body, strict=True)), default=0)


def _entry(kernel: EmittedFunction) -> str:
    return f"alone_{kernel.symbol}"


def _text(kernels: Sequence[EmittedFunction], dialect: Dialect, block: int) -> str:
    """Return a text with one kernel per task, inlined as in a program of moderate size."""
    parts = [prelude(dialect), "#define MK_TASK static __device__ __forceinline__\n", *(k.text for k in kernels)]
    for k in kernels:
        parts.append(
            f'extern "C" __global__ void __launch_bounds__({block}, {dialect.veus_per_sm})\n'
            f"{_entry(k)}(void *const *args, int rtask, int *bad) {{\n"
            f"  const int tid = threadIdx.x;\n  char *scratch = MK_ARENA + {header_bytes(0)};\n  int status = 0;\n"
            f"  {task_call(k, 'args', 'rtask')}\n  if (status) *bad = status;\n}}\n"
        )
    return "\n".join(parts)
