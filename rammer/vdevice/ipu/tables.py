"""The tables from which the host program builds its graph, as text: one line per thing."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from rammer.ir.kernel import RKernel
from rammer.ir.operator import flops
from rammer.ir.tensor import DType
from rammer.vdevice.ipu.access import accesses
from rammer.vdevice.ipu.codelets import EmittedCodelet
from rammer.vdevice.ipu.narrow import POPLAR
from rammer.vdevice.ipu.placement import Homes, Placement


class _Scratch:
    """One variable per element type holds the scratch of every tile's vertices."""

    def __init__(self, placed: Placement) -> None:
        tiles = placed.arch.tiles
        most: dict[DType, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        used: dict[tuple[DType, int, int], int] = {}
        for n, kernel in enumerate(placed.plan.kernels):
            if not any(c.scratch for c in placed.classes[n]):
                continue
            chosen = accesses(kernel).chosen
            for rtask, (tile, step) in enumerate(
                zip(placed.tiles(n).tolist(), placed.sets.sets[n].tolist(), strict=True)
            ):
                for f in placed.classes[n][chosen[rtask]].scratch if chosen[rtask] >= 0 else ():
                    key = (f.dtype, tile, step)
                    used[key] = used.get(key, 0) + aligned(f.size)
                    here = most.setdefault(f.dtype, np.zeros(tiles, np.int64))
                    here[tile] = max(here[tile], used[key])
        self.sizes = most
        self.variables = {dtype: len(placed.variables) + n for n, dtype in enumerate(most)}


def aligned(elements: int) -> int:
    """Elements up to a multiple of 8, so that every buffer starts on a word."""
    return -(-elements // 8) * 8


def plan_text(placed: Placement) -> str:
    """Everything that host.cpp reads, in its order."""
    return "\n".join(_lines(placed)) + "\n"


def _lines(placed: Placement) -> Iterator[str]:
    plan, arch = placed.plan, placed.arch
    scratch = _Scratch(placed)
    model = arch.model
    yield f"device 1 {model.version} {arch.tiles} {model.tile_bytes} {round(model.clock_ghz * 1e9)}"

    yield f"variables {len(placed.variables) + len(scratch.variables)}"
    for v in placed.variables:
        yield f"{v.name} {POPLAR[v.dtype][1]} {v.count}"
    for dtype, sizes in scratch.sizes.items():
        yield f"scratch_{dtype.value} {POPLAR[dtype][1]} {int(sizes.sum())}"

    homes = [
        f"{n} {low} {high} {tile}"
        for n, v in enumerate(placed.variables)
        for low, high, tile in _runs(np.where(v.produced < 0, v.home, -1))
    ]
    for dtype, sizes in scratch.sizes.items():
        homes += [
            f"{scratch.variables[dtype]} {end - size} {end} {tile}"
            for tile, (size, end) in enumerate(zip(sizes.tolist(), sizes.cumsum().tolist(), strict=True))
            if size
        ]
    yield f"homes {len(homes)}"
    yield from homes
    yield f"scratch {len(scratch.sizes)}"
    for dtype, sizes in scratch.sizes.items():
        starts = " ".join(map(str, (sizes.cumsum() - sizes).tolist()))
        yield f"{scratch.variables[dtype]} {arch.tiles} {starts}"

    kinds: list[dict[str, None]] = [{} for _ in range(placed.sets.count)]
    for n, op in enumerate(plan.graph.operators):
        for step in np.unique(placed.sets.sets[n]).tolist():
            kinds[step][op.kind] = None
    yield f"sets {placed.sets.count}"
    for step, names in enumerate(kinds):
        yield f"s{step}/{'+'.join(names)}"

    kernels = list(dict.fromkeys(plan.kernels))
    classes = {(k, i): c for k in kernels for i, c in enumerate(placed.classes[plan.kernels.index(k)])}
    numbers = {key: n for n, key in enumerate(classes)}
    yield f"classes {len(classes)}"
    for (kernel, variant), codelet in classes.items():
        yield _class(kernel, variant, codelet, scratch)
    yield f"kernels {len(kernels)}"
    for kernel in kernels:
        table = accesses(kernel)
        yield f"{kernel.num_rtasks} {len(kernel.operation.outputs) + len(kernel.operation.inputs)}"
        for chosen, row in zip(table.chosen, table.patterns, strict=True):
            number = numbers[kernel, chosen] if chosen >= 0 else -1
            yield f"{number} {' '.join(str(p.start) for p in row)}"

    status = 0
    for n, kernel in enumerate(plan.kernels):
        status += sum(c >= 0 and placed.classes[n][c].has_status for c in accesses(kernel).chosen)
    yield f"status {status}"

    yield f"operators {len(plan.kernels)}"
    index = {kernel: n for n, kernel in enumerate(kernels)}
    for n, kernel in enumerate(plan.kernels):
        where = " ".join(f"{v} {base}" for v, base in placed.arguments[n])
        yield f"{index[kernel]} {len(placed.arguments[n])} {where}"
        pairs = np.stack([placed.sets.sets[n], placed.tiles(n)], 1)
        yield " ".join(map(str, pairs.reshape(-1).tolist()))

    weights = [n for n, v in enumerate(placed.variables) if v.value is not None and v.count]
    yield f"weights {len(weights)}"
    yield from map(str, weights)
    graph = plan.graph
    for name, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"{name} {len(tensors)}"
        for tensor in tensors:
            number, base = placed.ports[tensor]
            yield f"{number} {base} {graph.types[tensor].size}"


def _class(kernel: RKernel, variant: int, codelet: EmittedCodelet, scratch: _Scratch) -> str:
    table = accesses(kernel)
    work = round(flops(kernel.operation.expr) / max(kernel.num_rtasks, 1))
    words: list[object] = [codelet.name, codelet.cycles, work, int(codelet.has_status), len(codelet.edges)]
    kinds = (*kernel.operation.outputs, *kernel.input_types())
    for f, levels, kind in zip(codelet.edges, table.variants[variant].levels, kinds, strict=True):
        words += [f.name, int(f.access == "Output"), prod(kind.physical_shape), len(levels)]
        for distance, count in levels:
            words += [distance, count]
    words.append(len(codelet.values))
    names = [f.argument for f in codelet.edges]
    for value in codelet.values:
        words += [value, -1 if value == "rtask" else names.index(value.removesuffix("_at"))]
    words.append(len(codelet.scratch))
    for f in codelet.scratch:
        words += [f.name, scratch.variables[f.dtype], aligned(f.size)]
    return " ".join(map(str, words))


def _runs(home: Homes) -> Iterator[tuple[int, int, int]]:
    """(begin, end, tile) of runs of one tile; elements of tile -1 are left out."""
    if not home.size:
        return
    cuts = np.flatnonzero(np.diff(home)) + 1
    starts, ends = np.append(0, cuts), np.append(cuts, home.size)
    for low, high in zip(starts.tolist(), ends.tolist(), strict=True):
        if home[low] >= 0:
            yield low, high, int(home[low])
