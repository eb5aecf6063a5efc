"""Compare two policies on one model in one process, in turns: the median ratio with a bootstrap interval.

python -m benchmarks.compare.policies [--seconds 16] [--policies sequential,wavefront] MODEL…
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import click
import numpy as np

import rammer
from benchmarks.models import catalog
from rammer.ir.tensor import Array
from rammer.runtime.program import Program
from rammer.scheduler.policy_options import split_policies

RUNS = 3  # in a row, of each policy: the first finds cold caches
RESAMPLES = 2000


def measure(name: str, policies: tuple[str, str], seconds: float) -> str:
    """One line: minima, medians, and how much faster the second policy is; nothing of it where both draw one plan."""
    built = catalog.named(name).built
    programs = [rammer.compile(str(built.path), "cpu", policy=p) for p in policies]
    first, second = (p.plan for p in programs)
    if (first.kernels, first.programs) == (second.kernels, second.programs):
        line = "the same plan"
    else:
        line = in_turn(programs, built.inputs, policies, seconds)
    for program in programs:
        program.close()
    return f"{name}: {line}"


def in_turn(programs: Sequence[Program], inputs: Mapping[str, Array], names: Sequence[str], seconds: float) -> str:
    """Minima and medians of two programs that run in turns, and how much faster the second one is."""
    blocks: list[list[float]] = [[], []]  # median milliseconds of each row of runs
    least = [float("inf")] * 2
    for program in programs:
        program.run(inputs)
    stop, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < stop:
        for which in (0, 1) if turn % 2 else (1, 0):
            row = []
            for _ in range(RUNS):
                start = time.perf_counter()
                programs[which].run(inputs)
                row.append((time.perf_counter() - start) * 1e3)
            blocks[which].append(float(np.median(row)))
            least[which] = min(least[which], *row)
        turn += 1
    ratio, low, high = ratio_of_medians(*blocks)
    texts = [f"{p} min {m:.3f} median {np.median(b):.3f} ms" for p, m, b in zip(names, least, blocks, strict=True)]
    fastest = least[0] / least[1]
    spread = f"ratio {ratio:.4f} [{low:.4f}, {high:.4f}], of minima {fastest:.4f}"
    return f"n={RUNS * turn}; {texts[0]}; {texts[1]}; {spread}"


def ratio_of_medians(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """The median of `first` over that of `second`, and its 95 % interval by bootstrap; both in the order of rounds."""
    pair = np.asarray([first, second])  # [2, rounds]
    picks = np.random.default_rng(0).integers(0, pair.shape[1], (RESAMPLES, pair.shape[1]))
    low, high = np.percentile(np.divide(*np.median(pair[:, picks], axis=2)), [2.5, 97.5])
    return float(np.divide(*np.median(pair, axis=1))), float(low), float(high)


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--seconds", default=16.0, show_default=True, help="Per model.")
@click.option("--policies", default="sequential,wavefront", show_default=True)
def main(models: tuple[str, ...], seconds: float, policies: str) -> None:
    """Compare two policies on MODELS (names of benchmarks.models, NAME:4 for batch 4)."""
    first, second = split_policies(policies)
    for name in models:
        click.echo(measure(name, (first, second), seconds))


if __name__ == "__main__":
    main()
