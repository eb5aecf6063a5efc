"""Lanes of a GPU's plan on paper: what rTasks take before and behind their waits, by machine code; no GPU needed.

python -m benchmarks.lanes lstm_tc_lstm [--arch h100:x2] [--policy stationary]

The longest chain of hand-overs says what a plan cannot be faster than. Here each vEU also has to do all that is in its
lane: it begins an rTask, waits, and goes on. vEUs of one multiprocessor are not charged for what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import click

import rammer
from benchmarks import catalog
from rammer import config
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import Position, TaskUid
from rammer.scheduler.timeline import walk
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.sass import disassembled, listings, walked
from rammer.vdevice.cuda.spec import choose_gpu
from rammer.vdevice.hops import HopCosts
from rammer.vdevice.simt.hops import ENTRY, called, standalone_text, way
from rammer.vdevice.simt.image import Function
from rammer.vdevice.simt.prelude import CUDA
from rammer.vdevice.simt.rooms import compiled


class Parts(NamedTuple):
    """Microseconds of an rTask before its wait, for what it loads early, and behind it."""

    before: float
    behind: float


class At(NamedTuple):
    """Where a lane is: its vEU, when it is free, what it has to wait for, and what it ran last."""

    veu: int
    us: float
    awaited_us: float = 0.0
    kind: object = None


@dataclass(frozen=True)
class Lanes:
    """How long all takes, the fullest lane without its waits, and the share of rTasks behind one of their kind."""

    total_us: float
    fullest_us: float
    same: float


def simulated(plan: ExecutionPlan, parts: Sequence[Parts], costs: HopCosts, registers: bool = False) -> Lanes:
    """Walk all lanes, with the parts of each operator's rTasks. `registers`: constants stay there where the next rTask
    in a lane is of the same kind.
    """
    busy, same, total = [0.0] * plan.spec.num_veus, 0, 0.0

    def rtask(now: At, veu: int, uid: TaskUid) -> At:
        nonlocal same
        n, kernel = uid.operator_id, plan.kernels[uid.operator_id]
        kind = kernel, plan.graph.operators[n].statics, uid.rtask_id
        same += kind == now.kind
        before = 0.0 if registers and kind == now.kind else parts[n].before
        busy[veu] += costs.dispatch_us + before + parts[n].behind
        ready = max(now.us + costs.dispatch_us + before, now.awaited_us)
        return At(veu, ready + parts[n].behind, kind=kind)

    def barrier(now: At, done: Iterable[tuple[Position, At]]) -> At:
        ends = [now.awaited_us]
        for _, at in done:
            far = 0.0 if at.veu == now.veu else costs.fence_us + costs.poll_us
            ends.append(max(at.us, at.awaited_us) + far)
        return now._replace(awaited_us=max(ends))

    for program in plan.programs:
        lanes = walk(program, At(-1, total), rtask, barrier)
        total = max(lane[-1].us for lane in lanes if lane)
    return Lanes(total, max(busy), same / plan.num_rtasks)


def parts_of(plan: ExecutionPlan, arch: str, shares: int, ghz: float) -> list[Parts]:
    """Of every operator, by the machine code of the functions that its program has. Raises ToolchainError."""
    dialect = replace(CUDA, shares=shares)
    tells = config.get("RAMMER_DATA_AS_FLAG") == "1"
    program, _ = compiled(plan, dialect, lambda text: compile_cubin(text, arch), tells=tells)
    functions = called(program)
    text = standalone_text((f.emitted for f in functions.values()), dialect)
    found = listings(disassembled(compile_cubin(text, arch).data))

    def parts(function: Function) -> Parts:
        listing, (warps, loops, waits) = found[ENTRY + function.emitted.symbol], way(function, dialect)
        whole, rest = (walked(listing, warps, loops, synced) for synced in (False, waits))
        behind = rest.compute + rest.tail
        return Parts(max(whole.compute + whole.tail - behind, 0) / ghz / 1e3, behind / ghz / 1e3)

    return [parts(functions[n]) for n in range(len(plan.kernels))]


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--arch", default="h100", show_default=True, help="A model or an arch; :x2 has two vEUs on each SM.")
@click.option("--policy", default="stationary", show_default=True)
def main(models: tuple[str, ...], arch: str, policy: str) -> None:
    """Print what the lanes of each of MODELS take, with and without fences, constants in registers or not."""
    gpu = choose_gpu(arch.partition(":")[0])
    for name in models:
        path = catalog.prepare(name).built.path
        with rammer.compile(path, "cuda", arch=arch, policy=policy, tune_seconds=0) as program:
            plan = program.plan
            parts = parts_of(plan, gpu.arch, int(arch.partition(":x")[2] or 1), gpu.ghz)
            resident = [n for n in program.report().notes if n.startswith("resident")]
        click.echo(f"{name}, {policy} on {arch}: {plan.num_rtasks} rTasks; {'; '.join(resident)}")
        for costs in (HopCosts(), HopCosts(fence_us=0.0)):
            near, kept = (simulated(plan, parts, costs, registers) for registers in (False, True))
            click.echo(
                f"  fence {costs.fence_us} µs: {near.total_us / 1e3:.3f} ms, fullest lane {near.fullest_us:.0f} µs; "
                f"constants in registers: {kept.total_us / 1e3:.3f} ms, {kept.fullest_us:.0f} µs; "
                f"{near.same:.0%} behind one of their kind"
            )


if __name__ == "__main__":
    main()
