"""Make Figure 19 of the paper, six models on an AMD GPU: simulated for the MI50's spec, and measured if a GPU is here.

Run `python -m benchmarks.gpu.rocm [--arch mi50] [--measure]`, or benchmarks/gpu/rocm.sh.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import click
from rich.console import Console
from rich.table import Table

import rammer
from benchmarks.models.build import build
from rammer.compiler import Compilation, CompileOptions
from rammer.errors import RammerError
from rammer.plugins import PluginRegistry
from rammer.runtime import measure
from rammer.scheduler.timeline import simulate
from rammer.vdevice.rocm.spec import choose_gpu

MODELS = ("resnext29", "nasnet_cifar", "alexnet", "deepspeech2_unrolled", "lstm_tc_unrolled", "seq2seq_unrolled")
POLICIES = ("sequential", "wavefront")
PAPER = "The paper measured 2.19 times on average, at most 4.12, on an MI50 with ROCm 3.1.1 (RammerBase / Rammer)."
WHY = (
    "Simulated times are a roofline of each rTask on the spec, 5 us a launch, 1.5 us a barrier: they know neither the "
    "kernels' real efficiency nor contention for L2 and HBM."
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan in the simulator, and how it came to be."""

    ms: float
    programs: int
    launch_ms: float
    utilisation: float
    seconds: float


def simulated(path: str, arch: str) -> dict[str, Simulated]:
    """Both policies' plans for one model, by policy, on the spec's estimates."""
    registry = PluginRegistry(third_party=False)
    device = f"emulator:{choose_gpu(arch).num_multiprocessors}"
    how = CompileOptions(target="rocm", arch=arch, device=device, policy=POLICIES[0], tune_seconds=0)
    with Compilation.of(path, how, registry=registry) as compilation:
        problem = compilation.problem
    found = {}
    for policy in POLICIES:
        start = time.perf_counter()
        plan = registry.policy(policy).schedule(problem)
        times = simulate(plan, problem.profiler.rtask_us)
        busy = sum(times.veu_utilisation) / len(times.veu_utilisation)
        seconds = time.perf_counter() - start
        found[policy] = Simulated(times.total_us / 1e3, len(plan.programs), times.launch_us / 1e3, busy, seconds)
    return found


def measured(path: str, repeats: int) -> dict[str, float]:
    """Milliseconds on the GPU of this machine, by events, by policy; results are checked to be finite and equal."""
    found, first = {}, None
    for policy in POLICIES:
        with rammer.compile(path, target="rocm", policy=policy) as program:
            inputs = measure.random_inputs(program.inputs, 0)
            outputs = program.run(inputs)
            first = first or outputs
            worst = max(float(abs(outputs[n] - v).max()) for n, v in first.items())
            if not worst < 1e-2:
                raise RammerError(f"{path}: {policy} differs from {POLICIES[0]} by {worst}")
            found[policy] = min(program.executable.times_us(inputs, repeats)) / 1e3  # type: ignore[attr-defined]
    return found


@click.command()
@click.argument("names", nargs=-1)
@click.option("--arch", default="mi50", show_default=True, help="The GPU to simulate.")
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
@click.option("--measure", "measuring", is_flag=True, help="Run on the AMD GPU of this machine as well.")
@click.option("--repeats", default=100, show_default=True, help="Runs to measure, of which the fastest counts.")
def main(names: tuple[str, ...], arch: str, scale: str, measuring: bool, repeats: int) -> None:
    """Compare the policies on NAMES (all six when empty)."""
    console = Console(width=150)
    real = ("measured: RammerBase ms", "Rammer ms", "speed-up") if measuring else ()
    columns = ("model", "RammerBase ms", "launching", "launches", "Rammer ms", "launches", "vEUs busy", "speed-up")
    table = Table(*columns, *real, "schedule s", title=f"simulated on {arch}", box=None)
    gains = []
    for name in names or MODELS:
        path = str(build(name, scale=scale).path)  # type: ignore[arg-type]
        base, best = simulated(path, arch).values()
        gains.append(base.ms / best.ms)
        row = [name, f"{base.ms:.3f}", f"{base.launch_ms:.3f}", str(base.programs)]
        row += [f"{best.ms:.3f}", str(best.programs), f"{best.utilisation:.0%}", f"{gains[-1]:.2f}"]
        if measuring:
            slow, fast = measured(path, repeats).values()
            row += [f"{slow:.3f}", f"{fast:.3f}", f"{slow / fast:.2f}"]
        table.add_row(*row, f"{base.seconds + best.seconds:.0f}")
    console.print(table)
    mean = prod(gains) ** (1 / len(gains))
    console.print(f"Simulated on {arch}: {mean:.2f} times on (geometric) average, at most {max(gains):.2f}.")
    console.print(PAPER, WHY, sep="\n", soft_wrap=True)


if __name__ == "__main__":
    main()
