"""Compare the cost model's estimates of single rKernels, from their loops alone, with times measured on warm operands.

python -m benchmarks.on_paper.work [--json FILE] MODEL…
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from benchmarks.compare.report import wide_console
from benchmarks.compare.run import commit, machine
from benchmarks.models import catalog
from rammer import files
from rammer.compiler import Compilation
from rammer.cost.issue import warm_us
from rammer.cost.work import work
from rammer.frontend.onnx import load
from rammer.ir.tile import TileProgram
from rammer.plugins import PluginRegistry

WORST = 10  # rKernels that are shown


@dataclass(frozen=True)
class Row:
    """One candidate rKernel: microseconds of an rTask."""

    model: str
    kernel: str
    counted_us: float
    measured_us: float

    @property
    def ratio(self) -> float:
        return self.counted_us / self.measured_us


def rows(name: str) -> list[Row]:
    """Return all candidates of a model's operations."""
    registry = PluginRegistry()
    with closing(registry.open("cpu")) as device:
        compilation = Compilation(load(str(catalog.prepare(name, 1, "full").built.path)), device, registry=registry)
        kernels = [k for found in compilation.candidates.kernels.values() for k in found]
        in_turn, states = device.rkernels_us(kernels), device.rkernels_states_us(kernels)
        return [
            Row(name, k.name, warm_us(work(k.body, device.spec), device.spec), min(in_turn[k], states[k].warm_us))
            for k in kernels
            if k in in_turn and k in states and isinstance(k.body, TileProgram)
        ]


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--least", default=1.0, show_default=True, help="Microseconds of an rTask that counts.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the rows to a file.")
def main(models: tuple[str, ...], least: float, output: Path | None) -> None:
    """Print the errors of counted times of rTasks, and the largest."""
    if output:
        files.check_new(output)
    found = [row for name in models for row in rows(name) if row.measured_us >= least]
    if not found:
        raise click.UsageError(f"no rTask of {', '.join(models)} takes {least} µs")
    off = np.log([row.ratio for row in found])
    table = Table("model", "rKernel", "counted µs", "measured µs", "ratio", box=None)
    for row in sorted(found, key=lambda row: -abs(np.log(row.ratio)))[:WORST]:
        table.add_row(row.model, row.kernel, f"{row.counted_us:.2f}", f"{row.measured_us:.2f}", f"{row.ratio:.2f}")
    console = wide_console()
    console.print(table)
    spread = f"median ratio {np.exp(np.median(off)):.3f}, |log ratio| median {np.median(np.abs(off)):.3f}"
    console.print(
        f"{len(found)} rKernels: {spread}, 90th percentile {np.percentile(np.abs(off), 90):.3f}", highlight=False
    )
    if output:
        content = {"commit": commit(), "machine": machine(), "rows": [asdict(row) for row in found]}
        files.write(output, json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
