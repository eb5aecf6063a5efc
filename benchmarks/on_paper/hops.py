"""Estimate the hand-overs of a plan's longest chain on a GPU, from the machine code of its rKernels. Needs no GPU.

    python -m benchmarks.on_paper.hops lstm_tc_lstm [--arch h100:x2] [--policy stationary] [--costs results.json]

Prints a line for each kind of hand-over. Fence, poll and dispatch are as measured on an H200, or from a file of
`benchmarks.gpu.micro`. The rTask's time has two parts: from its wait to its last sum, and from there to its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import count as numbered
from pathlib import Path
from typing import NamedTuple, TypeAlias

import click

import rammer
from benchmarks.gpu.sass import Cycles, disassembled, listings, walked
from benchmarks.models import catalog
from rammer.errors import ArtifactError
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import Position, RProgram, RTask, TaskUid
from rammer.ir.tile import Body, For, Kind, children
from rammer.scheduler.hand_overs import written_bytes
from rammer.scheduler.timeline import walk
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.spec import choose_gpu
from rammer.vdevice.simt.codegen.image import ProgramFunction, SimtProgram, make_program
from rammer.vdevice.simt.codegen.megakernel import header_bytes, task_call
from rammer.vdevice.simt.codegen.prelude import CUDA, Dialect, prelude
from rammer.vdevice.simt.codegen.printer import EmittedFunction

ENTRY = "hop_"  # before a kernel's symbol, of the function that calls it

Way: TypeAlias = tuple[int, tuple[int, ...]]  # waves of a task, and trips of its loops


class Hop(NamedTuple):
    """One hand-over: the operators of the awaited rTask and of the waiting one; -1 for a launch."""

    waited_for: int
    waits: int


class _Link(NamedTuple):
    """The last hand-over of a chain. `number` is unique, so that comparing equal chains never reaches `before`."""

    hops: int
    nbytes: int
    number: int
    source: int = -1  # the operator of the last hand-over
    before: _Link | None = None


def hops_of(plan: ExecutionPlan) -> list[Hop]:
    """Return the hand-overs of the longest chain, in order."""
    waiting: dict[int, int] = {}  # the first rTask behind a hand-over
    link: _Link | None = _longest(plan, waiting)
    found = []
    while link is not None and link.hops:
        found.append(Hop(link.source, waiting.get(link.number, -1)))
        link = link.before
    return found[::-1]


def _longest(plan: ExecutionPlan, waiting: dict[int, int]) -> _Link:
    numbers = numbered(1)
    longest = _Link(0, 0, 0)
    for number, program in enumerate(plan.programs):
        begin = longest if number == 0 else _Link(longest.hops + 1, longest.nbytes, next(numbers), -1, longest)
        longest = max((lane[-1] for lane in _along(plan, program, begin, numbers, waiting) if lane), default=begin)
    return longest


def _along(
    plan: ExecutionPlan, program: RProgram, begin: _Link, numbers: Iterator[int], waiting: dict[int, int]
) -> list[list[_Link]]:
    def rtask(now: _Link, veu: int, uid: TaskUid) -> _Link:
        waiting.setdefault(now.number, uid.operator_id)
        return now

    def barrier(now: _Link, _: int, done: Iterable[tuple[Position, _Link]]) -> _Link:
        latest = max(
            done, key=lambda one: (one[1].hops, one[1].nbytes + written_bytes(plan, program, one[0])), default=None
        )
        if latest is None:
            return now
        at, before = latest
        nbytes = before.nbytes + written_bytes(plan, program, at)
        if (before.hops + 1, nbytes) <= now[:2]:
            return now
        slot = program.lanes[at.veu][at.order]
        source = slot.uid.operator_id if isinstance(slot, RTask) else -1
        return _Link(before.hops + 1, nbytes, next(numbers), source, before)

    return walk(program, begin, rtask, barrier)


@dataclass(frozen=True, slots=True)
class HopCosts:
    """Microseconds of the parts that are the same in every hand-over. `source`: who says so.

    The defaults are estimates for GPUs of 2020 and later, from latencies that others published; a platform may know
    better.
    """

    fence_us: float = 0.4  # until the writes of a vEU may be seen, and its counter is written
    poll_us: float = 0.35  # until a poll of another vEU has seen the counter
    dispatch_us: float = 0.1  # two block syncs, the instruction and its arguments from shared memory, the jump
    source: str = "estimated"

    @staticmethod
    def read(path: str) -> HopCosts:
        """Measured costs from a JSON file of these names, or of a GPU's benchmarks; what it leaves out stays estimated.

        Raises ArtifactError.
        """
        try:
            given = json.loads(Path(path).read_text())
            given = given.get("hop_costs", given)
            known = {f.name: float(given[f.name]) for f in fields(HopCosts) if f.name != "source" and f.name in given}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path}: no costs of hand-overs: {error}", hint='{"fence_us": 0.4, …}') from error
        missing = [f.name for f in fields(HopCosts) if f.name != "source" and f.name not in known]
        what = "measured" + (f", but for {', '.join(missing)}" if missing else "")
        return replace(HopCosts(), **known, source=what)


H200 = HopCosts(fence_us=0.3, poll_us=0.5, source="an H200's, the dispatch estimated")  # benchmarks/gpu/micro.py


@dataclass(frozen=True)
class HopRow:
    """Equal hand-overs of the longest chain: how many, and what one of them takes."""

    kind: str
    rkernel: str
    count: int
    fence_us: float
    poll_us: float
    dispatch_us: float
    compute_us: float
    tail_us: float
    sure: bool

    @property
    def us(self) -> float:
        """Of one hand-over."""
        return self.fence_us + self.poll_us + self.dispatch_us + self.compute_us + self.tail_us


@dataclass(frozen=True)
class Hops:
    """The longest chain, in rows of equal hand-overs."""

    rows: tuple[HopRow, ...]
    source: str

    @property
    def total_us(self) -> float:
        """Of all hand-overs of the chain."""
        return sum(row.count * row.us for row in self.rows)

    def __str__(self) -> str:
        hops = sum(row.count for row in self.rows)
        head = f"{'hops':>5} {'fence':>6} {'poll':>6} {'disp.':>6} {'comp.':>7} {'tail':>6} {'sum':>7} µs  rKernel"
        lines = []
        for r in self.rows:
            fixed = f"{r.count:5} {r.fence_us:6.2f} {r.poll_us:6.2f} {r.dispatch_us:6.2f}"
            own = f"{' ' if r.sure else '≥'}{r.compute_us:6.2f} {r.tail_us:6.2f}"
            lines.append(f"{fixed} {own} {r.us:7.2f}     {r.rkernel}")
        foot = (
            f"{hops} hand-overs of the longest chain: {self.total_us / 1e3:.3f} ms; fence, poll and dispatch: "
            f"{self.source}; the rest by latencies of the machine code (≥: a loop of unknown length counted once)"
        )
        return "\n".join([head, *lines, foot])

    def to_json(self) -> str:
        """Everything, for other programs."""
        return json.dumps({"source": self.source, "total_us": self.total_us, "rows": [asdict(r) for r in self.rows]})


def hops(plan: ExecutionPlan, arch: str, costs: HopCosts | None = None) -> Hops:
    """Estimate the hand-overs of a plan's longest chain on a GPU: a model or an arch, as `rammer.compile` takes it.

    Raises ToolchainError.
    """
    costs, gpu = costs or H200, choose_gpu(arch)
    dialect = replace(CUDA, veus_per_sm=gpu.veus_per_sm)
    usual = called(make_program(plan, dialect))
    kinds = Counter((plan.graph.operators[hop.waits].kind, usual[hop.waits]) for hop in hops_of(plan) if hop.waits >= 0)
    own_texts = {f for _, f in kinds if not isinstance(f.built.body, ForeignSource)}
    text = standalone_text((f.emitted for f in own_texts), dialect)
    found = listings(disassembled(compile_cubin(text, gpu.arch).data)) if own_texts else {}
    rows = []
    for (kind, function), count in kinds.most_common():
        known = function in own_texts
        own = walked(found[ENTRY + function.emitted.symbol], *way(function, dialect)) if known else Cycles(0, 0, False)
        us = (own.compute / gpu.ghz / 1e3, own.tail / gpu.ghz / 1e3)
        fixed = (costs.fence_us, costs.poll_us, costs.dispatch_us)
        rows.append(HopRow(kind, function.kernel.name, count, *fixed, *us, own.sure))
    return Hops(tuple(rows), costs.source)


def called(program: SimtProgram) -> dict[int, ProgramFunction]:
    """By operator, the function of the program that most of its rTasks call."""
    streams = program.streams
    numbers: dict[int, Counter[int]] = {}
    for operator, fn in zip(streams.operators.tolist(), streams.instructions[:, 0].tolist(), strict=False):
        if operator >= 0 and fn >= 0:
            numbers.setdefault(operator, Counter())[fn] += 1
    return {n: program.functions[counted.most_common(1)[0][0]] for n, counted in numbers.items()}


def way(function: ProgramFunction, dialect: Dialect) -> Way:
    """How a function's machine code is walked."""
    kernel = function.built
    return -(-kernel.num_threads // dialect.subgroup_size), trips(kernel)


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
    return -(-threads // dialect.subgroup_size) * dialect.subgroup_size


def standalone_text(kernels: Iterable[EmittedFunction], dialect: Dialect) -> str:
    """A text with a function for each kernel, whose arguments lie in shared memory, as a vEU has them."""
    kernels = list({k.symbol: k for k in kernels}.values())
    parts = [prelude(dialect), "#define MK_TASK static __device__ __forceinline__\n", *(k.text for k in kernels)]
    for k in kernels:
        parts.append(
            f'extern "C" __global__ void __launch_bounds__({_whole(k.num_threads, dialect)}, {dialect.veus_per_sm})\n'
            f"{ENTRY}{k.symbol}(int rtask, int *bad) {{\n"
            "  const int tid = threadIdx.x;\n  void *const *args = (void *const *)MK_ARENA;\n"
            f"  char *scratch = MK_ARENA + {header_bytes(0)};\n  int status = 0;\n"
            f"  {task_call(k, 'args', 'rtask')}\n  if (status) *bad = status;\n}}\n"
        )
    return "\n".join(parts)


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--arch", default="h100", show_default=True, help="A model or an arch; :x2 has two vEUs on each SM.")
@click.option("--policy", default="auto", show_default=True)
@click.option("--costs", help="A JSON file of measured fence_us, poll_us and dispatch_us.")
def main(models: tuple[str, ...], arch: str, policy: str, costs: str | None) -> None:
    """Print the hand-overs of each of MODELS."""
    measured = HopCosts.read(costs) if costs else None
    for name in models:
        path = catalog.prepare(name).built.path
        with rammer.compile(path, "cuda", arch=arch, policy=policy, tune_seconds=0) as program:
            click.echo(f"{name}, {policy} on {arch}\n{hops(program.plan, arch, measured)}")


if __name__ == "__main__":
    main()
