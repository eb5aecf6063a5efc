"""Compute the least time that a model can take on this machine: arithmetic, weight bytes and recurrence.

FLOP floor: multiply-adds of direct convolutions at the measured FMA rate (Winograd may be faster). Weight floor: each
weight byte is read once, from the closest memory level that holds all weights. Recurrent floor: each step's product
streams the recurrent weights from that level, and everything else is a GEMM at full rate. Layers run one after another,
and synchronisation is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import onnx
from rich.table import Table

from benchmarks.compare.report import limits_table, wide_console
from benchmarks.micro.limits import Limits, measure
from benchmarks.models.fold import fold_constants
from rammer.errors import RammerError

Shapes = dict[str, tuple[int, ...]]
IR_OF_CONSTANTS = 4  # in which an initializer may be no input; before, shapes of those that are none stay unknown


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A chain of `steps` dependent products with one [rows, columns] weight, which no batching over time can avoid."""

    steps: int
    rows: int
    columns: int

    @property
    def macs(self) -> int:
        """Multiply-adds of the chain for one sample."""
        return self.steps * self.rows * self.columns

    @property
    def nbytes(self) -> int:
        """float32 weight bytes that the chain reads, each step anew."""
        return 4 * self.macs


@dataclass(frozen=True, slots=True)
class Work:
    """What a model has to do whatever executes it."""

    nodes: int
    macs: int
    parameters: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Floor:
    """Least milliseconds by cause; `ms` is the one that binds."""

    flop_ms: float
    weight_ms: float
    weight_level: str
    recurrent_ms: float

    @property
    def ms(self) -> float:
        return max(self.flop_ms, self.weight_ms, self.recurrent_ms)


def count(path: Path) -> Work:
    """Multiply-adds and weights of a model of our own, once what is constant is folded.

    Raises RammerError where a shape is not static.
    """
    folded = fold_constants(onnx.load(path))
    folded.ir_version = max(folded.ir_version, IR_OF_CONSTANTS)
    graph = onnx.shape_inference.infer_shapes(folded, strict_mode=True, data_prop=True).graph
    shapes: Shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)
    costly = [node for node in graph.node if node.op_type in MACS]
    for node in costly:
        unknown = [name for name in (*node.input, *node.output) if name and name not in shapes]
        if unknown:
            raise RammerError(f"{path.name}: {node.op_type} {node.name!r}: the shape of {unknown[0]!r} is not static")
    floats = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    parameters = sum(math.prod(t.dims) for t in floats)
    macs = sum(MACS[node.op_type](node, shapes) for node in costly)
    return Work(len(graph.node), macs, parameters, 4 * parameters)


def floor(work: Work, limits: Limits, recurrences: tuple[Recurrence, ...] = (), batch: int = 1) -> Floor:
    """The floors of `work`; recurrences are per sample, `work` is of the whole batch."""
    gmacs_per_ms = limits.gflops / 2 / 1e3
    level = limits.level_for(work.weight_bytes)
    recurrent_ms, batched = 0.0, work.macs
    for chain in recurrences:
        stream = limits.level_for(chain.nbytes / chain.steps).read_gbps
        recurrent_ms += max(chain.macs * batch / gmacs_per_ms / 1e9, chain.nbytes / stream / 1e6)
        batched -= chain.macs * batch
    if recurrences:
        recurrent_ms += batched / gmacs_per_ms / 1e9
    return Floor(work.macs / gmacs_per_ms / 1e9, work.weight_bytes / level.read_gbps / 1e6, level.name, recurrent_ms)


def _conv(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])


def _matmul(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _conv_transpose(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _gemm(node: onnx.NodeProto, shapes: Shapes) -> int:
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else -1]


def _recurrent(node: onnx.NodeProto, shapes: Shapes) -> int:
    steps, batch, _ = shapes[node.input[0]]
    return steps * batch * sum(math.prod(shapes[name]) for name in node.input[1:3])


MACS: dict[str, Callable[[onnx.NodeProto, Shapes], int]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}


@click.command()
@click.argument("names", nargs=-1)
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=1, show_default=True)
def main(names: tuple[str, ...], threads: int, batch: int) -> None:
    """Print the machine's limits and the floors of NAMES (the paper's when empty)."""
    from benchmarks.models.build import CATALOG, PAPER, build

    console = wide_console()
    limits = measure(threads)
    for cores in dict.fromkeys((1, threads)):
        console.print(limits_table(limits if cores == threads else measure(cores)))
    columns = ("model", "nodes", "params M", "GMAC", "MB", "FLOP ms", "weight ms (from)", "recurrent ms", "floor ms")
    table = Table(*columns, box=None)
    for name in names or PAPER:
        work = count(build(name, batch).path)
        least = floor(work, limits, CATALOG[name].recurrences("full"), batch)
        table.add_row(
            name,
            f"{work.nodes}",
            f"{work.parameters / 1e6:.2f}",
            f"{work.macs / 1e9:.3f}",
            f"{work.weight_bytes / 2**20:.1f}",
            f"{least.flop_ms:.2f}",
            f"{least.weight_ms:.2f} ({least.weight_level})",
            f"{least.recurrent_ms:.2f}" if least.recurrent_ms else "",
            f"{least.ms:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
