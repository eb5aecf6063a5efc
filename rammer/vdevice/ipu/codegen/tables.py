"""Print the tables from which the host program builds its graph, as text: one line per item."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rammer.ir.tensor import DType
from rammer.vdevice.ipu.codegen.narrow import poplar
from rammer.vdevice.ipu.codegen.program import PoplarProgram, VertexTable, runs_of


class _Scratch:
    """The scratch of all tiles' vertices, in one variable per element type."""

    def __init__(self, placed: PoplarProgram) -> None:
        tiles = placed.arch.tiles
        most: dict[DType, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        used: dict[tuple[DType, int, int], int] = {}
        for group in placed.groups:
            table = group.table
            if not any(c.scratch for c in table.classes):
                continue
            for rtask, (tile, step) in enumerate(zip(group.tiles.tolist(), group.sets.tolist(), strict=True)):
                for f in table.classes[table.chosen[rtask]].scratch if table.chosen[rtask] >= 0 else ():
                    key = (f.dtype, tile, step)
                    used[key] = used.get(key, 0) + aligned(f.size)
                    here = most.setdefault(f.dtype, np.zeros(tiles, np.int64))
                    here[tile] = max(here[tile], used[key])
        self.sizes = most
        self.variables = {dtype: len(placed.variables) + n for n, dtype in enumerate(most)}


def aligned(elements: int) -> int:
    """Round elements up to a multiple of 8, so that every buffer starts on a word."""
    return -(-elements // 8) * 8


def plan_text(placed: PoplarProgram) -> str:
    """Return the text that host.cpp reads, in its order."""
    return "\n".join(_lines(placed)) + "\n"


def _lines(placed: PoplarProgram) -> Iterator[str]:
    plan, arch = placed.plan, placed.arch
    scratch = _Scratch(placed)
    model = arch.model
    yield f"device 1 {model.version} {arch.tiles} {model.tile_bytes} {round(model.clock_ghz * 1e9)}"

    yield f"variables {len(placed.variables) + len(scratch.variables)}"
    for v in placed.variables:
        yield f"{v.name} {poplar(v.dtype)[1]} {v.count}"
    for dtype, sizes in scratch.sizes.items():
        yield f"scratch_{dtype.value} {poplar(dtype)[1]} {int(sizes.sum())}"

    homes = [
        f"{n} {low} {high} {tile}"
        for n, v in enumerate(placed.variables)
        for low, high, tile in runs_of(np.where(v.produced < 0, v.home, -1))
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

    kinds: list[dict[str, None]] = [{} for _ in range(placed.num_sets)]
    for group in placed.groups:
        for step in np.unique(group.sets).tolist():
            kinds[step][group.kind] = None
    yield f"sets {placed.num_sets}"
    for step, names in enumerate(kinds):
        yield f"s{step}/{'+'.join(names)}"

    tables = {table: n for n, table in enumerate(dict.fromkeys(group.table for group in placed.groups))}
    numbers = {key: n for n, key in enumerate((t, v) for t in tables for v in range(len(t.classes)))}
    yield f"classes {len(numbers)}"
    for table, variant in numbers:
        yield _class(table, variant, scratch)
    yield f"kernels {len(tables)}"
    for table in tables:
        yield f"{len(table.chosen)} {len(table.sizes)}"
        for chosen, row in zip(table.chosen, table.patterns, strict=True):
            number = numbers[table, chosen] if chosen >= 0 else -1
            yield f"{number} {' '.join(str(p.start) for p in row)}"

    yield f"status {sum(c >= 0 and g.table.classes[c].has_status for g in placed.groups for c in g.table.chosen)}"

    yield f"operators {len(placed.groups)}"
    for group in placed.groups:
        where = " ".join(f"{v} {base}" for v, base in group.arguments)
        yield f"{tables[group.table]} {len(group.arguments)} {where}"
        yield " ".join(map(str, np.stack([group.sets, group.tiles], 1).reshape(-1).tolist()))

    weights = [n for n, v in enumerate(placed.variables) if v.value is not None and v.count]
    yield f"weights {len(weights)}"
    yield from map(str, weights)
    graph = plan.graph
    for name, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        yield f"{name} {len(tensors)}"
        for tensor in tensors:
            number, base = placed.ports[tensor]
            yield f"{number} {base} {graph.types[tensor].size}"
    yield f"steps {len(placed.steps)}"
    yield " ".join(map(str, placed.steps))


def _class(table: VertexTable, variant: int, scratch: _Scratch) -> str:
    codelet = table.classes[variant]
    words: list[object] = [codelet.name, codelet.cycles, table.flops, int(codelet.has_status), len(codelet.edges)]
    for f, levels, size in zip(codelet.edges, table.levels[variant], table.sizes, strict=True):
        words += [f.name, int(f.access == "Output"), size, len(levels)]
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
