"""The longest chain of hand-overs between vEUs, in plans for a GPU that need not be here: nothing is compiled or run.

python -m benchmarks.hand_overs lstm_tc_lstm lstm_tc_unrolled [--target cuda] [--arch h100] [--scale full]
"""

from __future__ import annotations

import time

import click

from benchmarks import catalog
from benchmarks.store import Scale
from rammer.compiler import Compilation, CompileOptions
from rammer.scheduler.hand_overs import longest_chain
from rammer.scheduler.timeline import simulate


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--target", default="cuda", show_default=True)
@click.option("--arch", default="h100", show_default=True, help="A model or an arch of the target.")
@click.option("--policy", default="wavefront", show_default=True)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
def main(models: tuple[str, ...], target: str, arch: str, policy: str, scale: Scale) -> None:
    """Print hand-overs, bytes handed over, rTasks and the estimated time of each of MODELS."""
    how = CompileOptions(target=target, arch=arch, policy=policy, tune_seconds=0)
    for name in models:
        begun = time.monotonic()
        with Compilation.of(catalog.prepare(name, 1, scale).built.path, how) as compilation:
            plan, rtask_us = compilation.planned.plan, compilation.profiler.rtask_us
        chain = longest_chain(plan)
        click.echo(
            f"{name}: {chain.hops} hand-overs of {chain.nbytes / 1024:.1f} KiB in a row, {plan.num_rtasks} rTasks on "
            f"{plan.spec.num_veus} vEUs, {simulate(plan, rtask_us).total_us / 1e3:.2f} ms estimated; "
            f"planned in {time.monotonic() - begun:.0f} s"
        )


if __name__ == "__main__":
    main()
