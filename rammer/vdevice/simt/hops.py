"""Hand-overs of a plan's longest chain, by the machine code of the rKernels in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tile import Body, For, Kind, children
from rammer.vdevice.hops import HopCosts, HopRow, Hops
from rammer.vdevice.simt.megakernel import STOPPED, header_bytes, task_call
from rammer.vdevice.simt.prelude import Dialect, prelude
from rammer.vdevice.simt.printer import EmittedKernel, emit
from rammer.vdevice.simt.ready import with_constants

ENTRY = "hop_"  # before a kernel's symbol, of the function that calls it


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
    room: int,
    waiting: Iterable[int],
    costs: HopCosts,
    dialect: Dialect,
    ghz: float,
    cycles: Callable[[str, Mapping[str, Way]], Mapping[str, Cycles]],
    told: Collection[int] = (),
) -> Hops:
    """Rows for the operators that wait. `cycles`: of each function of a text, of so many waves and trips of loops.

    `room`: words of a thread for what is loaded before the wait. `told`: operators that take words and await no fence.
    Raises ToolchainError.
    """
    kernels = Counter(
        (plan.graph.operators[n].kind, with_constants(plan.kernels[n], room), n in told) for n in waiting if n >= 0
    )
    emitted = {
        k: emit(k, dialect, _whole(k.num_threads, dialect))
        for _, k, _ in kernels
        if not isinstance(k.body, ForeignSource)
    }
    asked = {ENTRY + e.symbol: (-(-k.num_threads // dialect.wave), trips(k), e.waits) for k, e in emitted.items()}
    found = cycles(standalone_text(emitted.values(), dialect), asked) if emitted else {}
    rows = []
    for (kind, kernel, quick), count in kernels.most_common():
        own = found[ENTRY + emitted[kernel].symbol] if kernel in emitted else Cycles(0, 0, False)
        fence = 0.0 if quick else costs.fence_us
        parts = (fence, costs.poll_us, costs.dispatch_us, own.compute / ghz / 1e3, own.tail / ghz / 1e3)
        rows.append(HopRow(kind, kernel.name, count, *parts, own.sure))
    return Hops(tuple(rows), costs.source)


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
    parts += ["INLINE bool mk_stopped(int, int, int *) { mk_sync(); return false; }\n", *(k.text for k in kernels)]
    for k in kernels:
        parts.append(
            f'extern "C" __global__ void __launch_bounds__({_whole(k.num_threads, dialect)}, {dialect.shares})\n'
            f"{ENTRY}{k.symbol}(int rtask, int pc, int *bad) {{\n"
            "  const int tid = threadIdx.x;\n  void *const *args = (void *const *)MK_ARENA;\n"
            f"  char *scratch = MK_ARENA + {header_bytes(0)};\n  int status = 0;\n"
            f"  {task_call(k, 'args', 'rtask')}\n  if (status) *bad = status;\n}}\n"
        )
    return "\n".join(parts)
