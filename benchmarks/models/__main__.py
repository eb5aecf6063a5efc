"""Make benchmark models: `python -m benchmarks.models --list`, `python -m benchmarks.models resnext29 alexnet`."""

from __future__ import annotations

import click
import onnx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.models.build import CATALOG, build
from benchmarks.models.store import Scale
from rammer.errors import RammerError


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "list_only", is_flag=True, help="Print the known models and stop.")
@click.option("--batch", default=1, show_default=True)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
def main(names: tuple[str, ...], list_only: bool, batch: int, scale: Scale) -> None:
    """Build NAMES (all when empty) and print what was made."""
    console = Console()
    if list_only:
        for spec in CATALOG.values():
            console.print(f"{spec.name:27} {spec.title}", highlight=False)
        return
    table = Table("model", "nodes", "parameters, M", "file", box=None)
    try:
        for name in track(names or list(CATALOG), "building", console=console):
            built = build(name, batch, scale)
            graph = onnx.load(built.path).graph
            parameters = sum(tensor_size(tensor) for tensor in graph.initializer) / 1e6
            table.add_row(name, f"{len(graph.node)}", f"{parameters:.2f}", str(built.path))
    except RammerError as error:
        raise click.ClickException(str(error)) from error
    console.print(table)


def tensor_size(tensor: onnx.TensorProto) -> int:
    """Number of elements."""
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size


if __name__ == "__main__":
    main()
