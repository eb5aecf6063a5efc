"""List where the time of a model goes, by operator: `python -m benchmarks.on_paper.operators nasnet_cifar`.

Operators are timed inside of whole runs, so weights and activations come from wherever they are then. Two floors are
next to them: arithmetic of the direct form at the measured FMA rate, and bytes. The first use of a weight in a run
reads the memory level that holds all weights. Later uses read the closest level that holds this weight. Activations
come from the closest level that holds the operator's. Times are sums over all vEUs, divided by the number of vEUs: with
the time outside of rTasks they add up to the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import click
from rich.markup import escape
from rich.table import Table

import rammer
from benchmarks.compare.report import limits_table, wide_console
from benchmarks.micro.limits import Limits, measure
from benchmarks.models.catalog import prepare
from rammer.ir.analysis.dependency import num_written, read_elements, union
from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import TensorId


@dataclass(slots=True)
class Row:
    """Equal operators with equal rKernels; milliseconds are sums over them, per run."""

    kind: str
    shapes: str
    rkernel: str
    num_rtasks: int
    count: int = 0
    ms: float = 0.0
    arithmetic_ms: float = 0.0
    bytes_ms: float = 0.0

    @property
    def floor_ms(self) -> float:
        """The larger floor."""
        return max(self.arithmetic_ms, self.bytes_ms)

    @property
    def gap_ms(self) -> float:
        """What could be won."""
        return self.ms - self.floor_ms


def rows(plan: ExecutionPlan, operator_us: Iterable[float], limits: Limits) -> list[Row]:
    """One row per distinct operation and rKernel, largest gap first."""
    graph, found, used = plan.graph, dict[tuple[str, str, str], Row](), set[TensorId]()
    weights = limits.level_for(sum(array.nbytes for array in graph.constants.values()))
    for op, kernel, us in zip(graph.operators, plan.kernels, operator_us, strict=True):
        shapes = " ".join("×".join(map(str, kind.shape)) for kind in op.operation.inputs)
        key = (op.kind, shapes, kernel.name)
        row = found.setdefault(key, Row(*key, kernel.num_rtasks))
        row.count += 1
        row.ms += us / 1e3 / plan.spec.num_veus
        row.arithmetic_ms += flops(op.operation.expr) / limits.gflops / 1e6
        activations = _written_bytes(kernel)
        for position, tensor in enumerate(op.inputs):
            nbytes, root = _read_bytes(kernel, position), graph.storage(tensor).root
            if root not in graph.constants:
                activations += nbytes
                continue
            level = limits.level_for(nbytes) if root in used else weights
            row.bytes_ms += nbytes / level.read_gbps / 1e6
            used.add(root)
        row.bytes_ms += activations / limits.level_for(activations).read_gbps / 1e6
    return sorted(found.values(), key=lambda row: -row.gap_ms)


def _read_bytes(kernel: RKernel, position: int) -> int:
    elements = union(read_elements(kernel, position).sets)
    return int((elements[:, 1] - elements[:, 0]).sum()) * kernel.input_types()[position].dtype.itemsize


def _written_bytes(kernel: RKernel) -> int:
    return sum(num_written(kernel, n) * kind.dtype.itemsize for n, kind in enumerate(kernel.operation.outputs))


def table(rows: list[Row], limit: int) -> Table:
    """The first `limit` rows and the sum of all."""
    columns = ("operator", "inputs", "rKernel", "count", "rTasks", "ms", "arithmetic", "bytes", "x floor", "gap ms")
    result = Table(box=None)
    for column in columns:
        text = column in columns[:3]
        result.add_column(column, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows[:limit]:
        result.add_row(
            escape(row.kind),
            row.shapes,
            escape(row.rkernel),
            f"{row.count}",
            f"{row.num_rtasks}",
            f"{row.ms:.3f}",
            f"{row.arithmetic_ms:.3f}",
            f"{row.bytes_ms:.3f}",
            f"{row.ms / row.floor_ms:.2f}" if row.floor_ms else "",
            f"{row.gap_ms:.3f}",
        )
    ms, floor = sum(row.ms for row in rows), sum(row.floor_ms for row in rows)
    sums = (f"{ms:.3f}", *(f"{sum(getattr(r, n) for r in rows):.3f}" for n in ("arithmetic_ms", "bytes_ms")))
    count = f"{sum(row.count for row in rows)}"
    result.add_row("all", "", "", count, "", *sums, f"{ms / floor:.2f}" if floor else "", f"{ms - floor:.3f}")
    return result


@click.command()
@click.argument("name")
@click.option("--batch", default=1, show_default=True)
@click.option("--policy", default="auto", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="How long to run the model.")
@click.option("--rows", "limit", default=25, show_default=True, help="Rows of the table.")
def main(name: str, batch: int, policy: str, threads: int, seconds: float, limit: int) -> None:
    """Print time over floor of every operator of the model NAME, largest gap first."""
    console = wide_console()
    built = prepare(name, batch).built
    limits = measure(threads)
    with rammer.compile(built.path, "cpu", policy=policy, device=threads) as program:
        usage = program.profile(built.inputs, seconds=seconds)
        found = rows(program.plan, usage.operator_us, limits.best(measure(threads)))
    console.print(limits_table(limits), table(found, limit))
    console.print(str(usage), highlight=False)


if __name__ == "__main__":
    main()
