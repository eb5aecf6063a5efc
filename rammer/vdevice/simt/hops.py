"""Hand-overs of a plan's longest chain, by the machine code of the rKernels in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tile import Body, For, Kind, children
from rammer.vdevice.hops import HopCosts, HopRow, Hops
from rammer.vdevice.simt.image import Function, SimtProgram
from rammer.vdevice.simt.megakernel import STOPPED, header_bytes, task_call
from rammer.vdevice.simt.prelude import Dialect, prelude
from rammer.vdevice.simt.printer import EmittedKernel

ENTRY = "hop_"  # before a kernel's symbol, of the function that calls it
# Waits that are over: what stands behind them is read.
WAITED = "INLINE bool mk_stopped(int, int, int *) { mk_sync(); return false; }\n"


class Cycles(NamedTuple):
    """Clocks of one rTask from its wait on: until its last sum is there, and from there to its end; `sure`: all its
    loops are known.
    """

    compute: int
    tail: int
    sure: bool


Way: TypeAlias = tuple[int, tuple[int, ...], bool]  # waves of a task, trips of its loops, and whether it syncs first


def estimated(
    plan: ExecutionPlan,
    program: SimtProgram,
    waiting: Iterable[int],
    costs: HopCosts,
    dialect: Dialect,
    ghz: float,
    cycles: Callable[[str, Mapping[str, Way]], Mapping[str, Cycles]],
) -> Hops:
    """Rows for the operators that wait. `cycles`: of each function of a text, of so many waves and trips of loops.

    `program`: the plan as it was built, whose functions are read. Raises ToolchainError.
    """
    usual = called(program)
    kinds = Counter((plan.graph.operators[n].kind, usual[n]) for n in waiting if n >= 0)
    own_texts = {f for _, f in kinds if not isinstance(f.built.body, ForeignSource)}
    asked = {ENTRY + f.emitted.symbol: way(f, dialect) for f in own_texts}
    found = cycles(standalone_text((f.emitted for f in own_texts), dialect), asked) if own_texts else {}
    rows = []
    for (kind, function), count in kinds.most_common():
        kernel, _, emitted = function
        own = found.get(ENTRY + emitted.symbol, Cycles(0, 0, False))
        parts = (costs.fence_us, costs.poll_us, costs.dispatch_us, own.compute / ghz / 1e3, own.tail / ghz / 1e3)
        rows.append(HopRow(kind, kernel.name, count, *parts, own.sure))
    return Hops(tuple(rows), costs.source)


def called(program: SimtProgram) -> dict[int, Function]:
    """By operator, the function of the program that most of its rTasks call."""
    streams = program.streams
    numbers: dict[int, Counter[int]] = {}
    for operator, fn in zip(streams.operators.tolist(), streams.instructions[:, 0].tolist(), strict=False):
        if operator >= 0 and fn >= 0:
            numbers.setdefault(operator, Counter())[fn] += 1
    return {n: program.functions[counted.most_common(1)[0][0]] for n, counted in numbers.items()}


def way(function: Function, dialect: Dialect) -> Way:
    """How a function's machine code is walked, behind its own wait if it has one."""
    kernel = function.built
    return -(-kernel.num_threads // dialect.wave), trips(kernel), function.emitted.waits


def trips(kernel: RKernel) -> tuple[int, ...]:
    """How often each loop of a kernel runs that no schedule unrolls, outermost first."""

    def walk(body: Body) -> Iterable[int]:
        for stmt in body:
            if isinstance(stmt, For) and stmt.kind is Kind.SERIAL and stmt.stop - stmt.start > 1:
                yield stmt.stop - stmt.start
            yield from walk(children(stmt))

    return () if isinstance(kernel.program, ForeignSource) else tuple(walk(kernel.program.body))


def _whole(threads: int, dialect: Dialect) -> int:
    """As many threads in whole waves."""
    return -(-threads // dialect.wave) * dialect.wave


def standalone_text(kernels: Iterable[EmittedKernel], dialect: Dialect) -> str:
    """A text with a function for each kernel, whose arguments lie in shared memory, as a vEU has them."""
    kernels = list({k.symbol: k for k in kernels}.values())
    parts = [prelude(dialect), "#define MK_TASK static __device__ __forceinline__\n", STOPPED]
    parts += [WAITED, *(k.text for k in kernels)]
    for k in kernels:
        parts.append(
            f'extern "C" __global__ void __launch_bounds__({_whole(k.num_threads, dialect)}, {dialect.shares})\n'
            f"{ENTRY}{k.symbol}(int rtask, int pc, int *bad) {{\n"
            "  const int tid = threadIdx.x;\n  void *const *args = (void *const *)MK_ARENA;\n"
            f"  char *scratch = MK_ARENA + {header_bytes(0)};\n  int status = 0;\n"
            f"  {task_call(k, 'args', 'rtask')}\n  if (status) *bad = status;\n}}\n"
        )
    return "\n".join(parts)
