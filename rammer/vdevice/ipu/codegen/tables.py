"""Print the tables from which the host program builds its graph, as text: one line per item."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return the text that host.cpp reads, in its order: sections, each with its number of rows."""
    plan, arch, scratch = placed.plan, placed.arch, _Scratch(placed)
    model, graph = arch.model, plan.graph
    lines = [f"device 1 {model.version} {arch.tiles} {model.tile_bytes} {round(model.clock_ghz * 1e9)}"]

    def section(name: str, rows: Sequence[str], count: int | None = None) -> None:
        lines.extend((f"{name} {len(rows) if count is None else count}", *rows))

    section("variables", _variables(placed, scratch))
    section("homes", _homes(placed, scratch))
    starts = ((dtype, " ".join(map(str, (n.cumsum() - n).tolist()))) for dtype, n in scratch.sizes.items())
    section("scratch", [f"{scratch.variables[dtype]} {arch.tiles} {first}" for dtype, first in starts])
    kinds: list[dict[str, None]] = [{} for _ in range(placed.num_sets)]
    for group in placed.groups:
        for step in np.unique(group.sets).tolist():
            kinds[step][group.kind] = None
    section("sets", [f"s{step}/{'+'.join(names)}" for step, names in enumerate(kinds)])

    tables = {table: n for n, table in enumerate(dict.fromkeys(group.table for group in placed.groups))}
    numbers = {key: n for n, key in enumerate((t, v) for t in tables for v in range(len(t.classes)))}
    section("classes", [_class(table, variant, scratch) for table, variant in numbers])
    rows = []
    for table in tables:
        rows.append(f"{len(table.chosen)} {len(table.sizes)}")
        for chosen, row in zip(table.chosen, table.patterns, strict=True):
            number = numbers[table, chosen] if chosen >= 0 else -1
            rows.append(f"{number} {' '.join(str(p.start) for p in row)}")
    section("kernels", rows, len(tables))
    section("status", [], sum(c >= 0 and g.table.classes[c].has_status for g in placed.groups for c in g.table.chosen))
    rows = []
    for group in placed.groups:
        where = " ".join(f"{v} {base}" for v, base in group.arguments)
        rows.append(f"{tables[group.table]} {len(group.arguments)} {where}")
        rows.append(" ".join(map(str, np.stack([group.sets, group.tiles], 1).reshape(-1).tolist())))
    section("operators", rows, len(placed.groups))

    section("weights", [str(n) for n, v in enumerate(placed.variables) if v.value is not None and v.count])
    for name, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        ports = ((*placed.ports[tensor], graph.types[tensor].size) for tensor in tensors)
        section(name, [f"{number} {base} {size}" for number, base, size in ports])
    section("steps", [" ".join(map(str, placed.steps))], len(placed.steps))
    return "\n".join(lines) + "\n"


def _variables(placed: PoplarProgram, scratch: _Scratch) -> list[str]:
    own = [f"{v.name} {poplar(v.dtype)[1]} {v.count}" for v in placed.variables]
    return own + [f"scratch_{d.value} {poplar(d)[1]} {int(sizes.sum())}" for d, sizes in scratch.sizes.items()]


def _homes(placed: PoplarProgram, scratch: _Scratch) -> list[str]:
    """Return the tiles of elements that no vertex writes, and of scratch."""
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
    return homes


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
