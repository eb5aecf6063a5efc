"""Estimate the worth of the generators' numbers: each is halved and doubled. Compiles and runs nothing.

python -m benchmarks.on_paper.constants [--target cpu] [--arch x86-64-avx512] [--only SLACK,WHOLE] MODEL…
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from math import inf

import click

from benchmarks.models import catalog
from rammer import kernels
from rammer.compiler import Compilation
from rammer.cost.estimate import estimated_us
from rammer.frontend.onnx import load
from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operation
from rammer.plugins import PluginRegistry

Times = Mapping[Operation, float]


def constants() -> dict[str, float]:
    """Numbers by module and name, which generators choose by; not those that say what an algorithm is."""
    found = {}
    for module in [name for name in sys.modules if name.startswith("rammer.kernels.")]:
        for name, value in vars(sys.modules[module]).items():
            if name.isupper() and type(value) in (int, float) and defined(module, name):
                found[f"{module.removeprefix('rammer.kernels.')}.{name}"] = value
    return found | {f"kernels.{n}": v for n, v in vars(kernels).items() if n.isupper() and type(v) in (int, float)}


def defined(module: str, name: str) -> bool:
    """Whether a module has its name from itself, and not from another one."""
    source = sys.modules[module].__file__
    assert source
    with open(source, encoding="utf-8") as file:
        return any(line.startswith((f"{name} =", f"{name}:")) for line in file)


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """The generators with another value of a number, wherever it was imported."""
    _, _, own = name.rpartition(".")
    modules = [m for n, m in sys.modules.items() if n.startswith("rammer.kernels")]
    before = [(m, vars(m)[own]) for m in modules if own in vars(m)]
    old = constants()[name]
    try:
        for module, known in before:
            if known == old:
                setattr(module, own, value)
        yield
    finally:
        for module, known in before:
            setattr(module, own, known)


def times(operations: Iterable[Operation], spec: VDeviceSpec) -> Times:
    """Microseconds of each operation alone on the vDevice by its cheapest candidate; infinite if there is none."""
    found = {}
    for operation in operations:
        try:
            made = kernels.candidates(operation, spec)
        except Exception:  # whatever comes of a value that cannot be
            made = []
        found[operation] = min((estimated_us(k, spec) * -(-k.num_rtasks // spec.num_veus) for k in made), default=inf)
    return found


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--target", default="cpu", show_default=True)
@click.option("--arch", default=None, help="Another one than this machine's.")
@click.option("--only", default="", help="Names, comma-separated; all by default.")
def main(models: tuple[str, ...], target: str, arch: str | None, only: str) -> None:
    """Print, for each number, what halving and doubling it does to the counted time of MODELS' distinct operations."""
    with closing(PluginRegistry().open(target, arch=arch)) as device:
        spec, operations = device.spec, dict.fromkeys(())
        for name in models:
            graph = Compilation(load(str(catalog.prepare(name, 1, "full").built.path)), device).optimized.graph
            operations |= dict.fromkeys(op.operation for op in graph.operators)
    usual = times(operations, spec)
    total = sum(usual.values())
    click.echo(f"{len(usual)} operations, {total:.0f} µs in all, counted; worst and number: of operations that change")
    click.echo(f"{'number':32} {'value':>8}  halved: all   worst  number  doubled: all   worst  number")
    for name, value in constants().items():
        if only and name.rpartition(".")[2] not in only.split(","):
            continue
        cells = []
        for other in (value / 2, value * 2):
            with changed(name, type(value)(other)):
                found = times(operations, spec)
            ratios = [found[op] / us for op, us in usual.items() if us and found[op] != us]
            cells.append(f"{sum(found.values()) / total:11.4f} {max(ratios, default=1.0):7.3f} {len(ratios):7}")
        click.echo(f"{name:32} {value:8g} {cells[0]}  {cells[1]}")


if __name__ == "__main__":
    main()
