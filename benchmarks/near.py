"""Results that stay in shared memory, on paper: bytes through L2, and time. No GPU needed; everything is simulated.

python -m benchmarks.near [--target cuda] [--arch orin] [MODEL[:BATCH]…]

Plans of wavefront, and of graphturbo without and with chains in scratch (`near=off`, `near=scratch`), in the second of
two runs, with estimated times of rTasks and operands followed through caches at the spec's rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

import rammer
from benchmarks import catalog
from rammer.compiler import find_candidates, profile
from rammer.cost.price import fit
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.memory import plan_memory
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.verify import verify_plan
from rammer.passes import optimize
from rammer.plugins import PluginRegistry
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import parse_policy, wishes_of
from rammer.scheduler.timeline import Timeline, simulate
from rammer.vdevice.base import silent

MODELS = (
    "today_minilm_32:4",
    "today_vit_tiny:4",
    "today_mobilenet_v2:4",
    "today_resnet18:2",
    "lstm_tc_lstm:1",
    "today_gru4rec:1",
)
POLICIES = "wavefront", "graphturbo:near=off", "graphturbo"
MIB = 1 << 20


def planned(path: str, target: str, arch: str, policy: str) -> tuple[ExecutionPlan, Timeline]:
    """A model's verified plan by estimated times, and the timeline of a run after another, operands followed."""
    registry = PluginRegistry()
    chosen, vdevice = registry.policy(*parse_policy(policy)), registry.open(target, arch=arch)
    try:
        graph = rammer.load(path)
        apart, finer = wishes_of(chosen, graph, vdevice.spec)
        graph = optimize(graph, vdevice.spec, images_apart=apart)
        candidates = find_candidates(graph, vdevice, registry, finer)
        profiler = profile(candidates, vdevice, 0, silent)

        def offer(other: Graph, veus: int) -> Mapping[Operation, Sequence[RKernel]]:
            return find_candidates(other, vdevice, registry, finer, known=candidates, num_veus=veus)

        plan = chosen.schedule(Problem(graph, vdevice.spec, candidates, profiler, offer=offer))
    finally:
        vdevice.close()
    plan = replace(plan, memory=plan.memory or plan_memory(plan))
    verify_plan(plan)
    prices = {kernel: fit(kernel, plan.spec, profiler.rtask_us(kernel), None) for kernel in plan.kernels}
    return plan, simulate(replace(plan, prices=prices))


@click.command()
@click.argument("models", nargs=-1)
@click.option("--target", default="cuda", show_default=True)
@click.option("--arch", default="orin", show_default=True, help="A model or an arch.")
def main(models: tuple[str, ...], target: str, arch: str) -> None:
    """Print a row for each policy of each of MODELS."""
    click.echo(f"{target}, {arch}, simulated. | model | policy | results in scratch, MiB | MiB: scratch, … | ms |")
    for name in models or MODELS:
        path = str(catalog.named(name).built.path)
        for policy in POLICIES:
            plan, timeline = planned(path, target, arch, policy)
            near = sum(plan.graph.types[t].nbytes for t in plan.memory.near) if plan.memory else 0
            moved = ", ".join(f"{level} {nbytes / MIB:.1f}" for level, nbytes in timeline.moved.items())
            drawn = f" ({plan.policy})" if plan.policy != policy else ""
            click.echo(f"| {name} | {policy}{drawn} | {near / MIB:.2f} | {moved} | {timeline.total_us / 1e3:.3f} |")


if __name__ == "__main__":
    main()
