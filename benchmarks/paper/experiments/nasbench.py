"""§5.2.5: thousands of random cells, under RammerBase, Rammer, and Rammer with global barriers; Figure 18 is one."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.paper import results
from benchmarks.paper.experiments.cells import Cell, cell_graph, draw_cells
from benchmarks.paper.experiments.planner import BEYOND, RAMMER, RAMMER_BASE, TARGETS, planner
from benchmarks.paper.figure import Claim, Drawn, Figure, Job, Panel, Points, Source, Values
from rammer.errors import RammerError
from rammer.ir.graph import Graph

CELLS, CHUNK, SEED = 5000, 100, 0
SAMPLE, SAMPLE_CHUNK, SECONDS = 100, 4, 1.0  # of cells measured here, and of running each
GLOBAL = f"{RAMMER},sync=global"
POLICIES = {"base": RAMMER_BASE, "rammer": RAMMER, "global": GLOBAL, "beyond": BEYOND}


@cache
def _cells() -> list[Cell]:
    return draw_cells(CELLS, SEED)


def _jobs() -> Iterator[Job]:
    for spec in TARGETS:
        for first in range(0, CELLS, CHUNK):
            yield Job(f"{spec} {first:04}-{first + CHUNK - 1:04}", partial(simulate_cells, spec, first, CHUNK))
    for first in range(0, SAMPLE, SAMPLE_CHUNK):
        key = f"cpu {first:04}-{first + SAMPLE_CHUNK - 1:04}"
        yield Job(key, partial(measure_cells, first, SAMPLE_CHUNK), target="cpu")


def simulate_cells(spec: str, first: int, count: int) -> tuple[Source, Values]:
    """Microseconds of some cells by policy, by the spec; and whether each is irregular."""
    own = planner(spec)
    found: dict[str, list[Any]] = {name: [] for name in (*policies_of(spec), "irregular")}
    with _without_collector():
        for cell in _cells()[first : first + count]:
            graph = own.optimized(cell_graph(cell, own.operations))
            found["irregular"].append(int(is_irregular(graph)))
            for name, policy in policies_of(spec).items():
                found[name].append(float(f"{own.cost(own.plan(graph, policy)).ms * 1e3:.5g}"))
    return own.source, {"n": count, **found}


@contextmanager
def _without_collector() -> Iterator[None]:
    """Plans are many objects, at each of which Python would look for cycles among all tilings that are known."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def policies_of(spec: str) -> Mapping[str, str]:
    """What is compared on a spec: where all barriers are global, there are no finer ones."""
    return {n: p for n, p in POLICIES.items() if spec != "gc2" or n in ("base", "rammer")}


def is_irregular(graph: Graph) -> bool:
    """Whether operators of some wave compute different things: the paper's "heterogeneous operators in a wave"."""
    return any(len({graph.operators[n].operation for n in wave}) > 1 for wave in graph.wavefronts())


def measure_cells(first: int, count: int) -> tuple[Source, Values]:
    """Median microseconds of some cells by policy, compiled and run in turns on this machine."""
    import rammer
    from benchmarks.compare.run import machine
    from rammer.runtime.measure import interleaved

    found: dict[str, list[Any]] = {name: [] for name in (*POLICIES, "irregular")}
    for cell in _cells()[first : first + count]:
        programs = {n: rammer.compile(cell_graph(cell), "cpu", policy=p) for n, p in POLICIES.items()}
        try:
            found["irregular"].append(int(is_irregular(programs["rammer"].plan.graph)))
            for name, samples in interleaved(programs, SECONDS).items():
                found[name].append(float(f"{samples.median_ms * 1e3:.5g}"))
        finally:
            for program in programs.values():
                program.close()
    veus = rammer.PluginRegistry().open("cpu").spec.num_veus
    return Source("measured", f"cpu: {machine()['cpu']}, {veus} vEUs"), {"n": count, **found}


def gathered(points: Points, device: str, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number of all cells of a device that are made, by the cell's number."""
    keys = sorted(key for key in points if key.startswith(f"{device} "))
    return np.array([v for key in keys for v in points[key].values.get(name, ())], np.float64)


def speedups(points: Points, device: str, slow: str, fast: str, irregular: bool = False) -> Sequence[float]:
    """How many times faster `fast` is, by cell; of irregular ones only, if asked for."""
    times = gathered(points, device, slow), gathered(points, device, fast)
    if not times[0].size or not times[1].size:
        return []
    found = times[0] / times[1]
    chosen: list[float] = found[gathered(points, device, "irregular") > 0 if irregular else slice(None)].tolist()
    return chosen


DEVICES = (*TARGETS, "cpu")


def _distribution(points: Points, title: str, slow: str, fast: str, irregular: bool) -> Panel:
    curves = {}
    for device in DEVICES:
        if found := speedups(points, device, slow, fast, irregular):
            shares = np.linspace(0, 100, 101)
            quantiles = np.percentile(found, shares)
            label = f"{device} ({len(found)} cells)"
            curves[label] = tuple((float(s), float(q)) for s, q in zip(shares, quantiles, strict=True))
    return Panel(title, "times faster", "curves", curves=curves, across="share of cells, least gain first (%)")


def _draw(points: Points) -> Drawn:
    rows: list[tuple[str, ...]] = [("device", "compared", "cells", "mean", "median", "least", "most", "slower than 1")]
    for device in DEVICES:
        for label, slow, fast, irregular in (
            ("Rammer over RammerBase", "base", "rammer", False),
            ("beyond the paper over RammerBase", "base", "beyond", False),
            ("fine over global barriers, irregular cells", "global", "rammer", True),
        ):
            if found := speedups(points, device, slow, fast, irregular):
                numbers = (np.mean(found), np.median(found), min(found), max(found))
                below = f"{np.mean(np.array(found) < 0.995):.1%}"
                rows.append((device, label, str(len(found)), *(f"{v:.3f}" for v in numbers), below))
    return Drawn(
        (
            _distribution(points, "Rammer over RammerBase, all cells", "base", "rammer", False),
            _distribution(points, "Fine over global barriers, irregular cells", "global", "rammer", True),
        ),
        {"Distributions": rows},
    )


def _claim(what: str, paper: str, slow: str, fast: str, irregular: bool) -> Iterator[Claim]:
    for device in DEVICES if slow == "base" else [d for d in DEVICES if d != "gc2"]:

        def ours(points: Points, device: str = device) -> str | None:
            found = speedups(points, device, slow, fast, irregular)
            return f"{np.mean(found):.2f}× on average, up to {max(found):.2f}×" if found else None

        yield Claim(f"{what}, {device}", paper, ours)


def _share(points: Points) -> str | None:
    found = gathered(points, "v100", "irregular")
    return f"{found.mean():.1%}" if found.size else None


FIGURE = Figure(
    name="nasbench",
    title="§5.2.5, NASBench",
    caption="Fine-grained synchronization: 5,000 random modules of NASBench.",
    section="§5.2.5",
    how='The paper says "up to 9 operators and 7 edges". NAS-Bench-101 limits a cell to 7 vertices, including '
    "input and output, and 9 edges; we use these limits. Cells are generated from a seed, all different, at "
    "the size of the first stack on CIFAR-10 (32×32, 128 channels), batch 1. A cell is irregular if some wave "
    "has operators that compute different things, in the graph after fusion. Times of the V100, MI50 and GC2 "
    "are simulated by the spec: no kernel was compiled. On the CPU, programs were compiled and run in turns; "
    "its numbers are medians.",
    jobs=_jobs,
    draw=_draw,
    claims=(
        *_claim("Rammer over RammerBase", "1.28× on average, up to 3.40×", "base", "rammer", False),
        Claim("irregular cells", "28.3%", _share),
        *_claim(
            "fine over global barriers, irregular cells", "1.11× on average, up to 1.89×", "global", "rammer", True
        ),
    ),
    differs=(
        "Cells are all different, and the number of small ones is limited, so more of these are irregular "
        "than of the paper's.",
        "By the specs, a barrier of single rTasks costs as much as one of all vEUs, and an rProgram's end may "
        "be the better barrier: if rTasks wait for many others one by one, fine barriers lose.",
        "Beyond the paper, plans are chosen by times that count evicted weights; the times here do not, so "
        "some cells (20 of 5,000 on the V100's spec) are up to 5 % slower than as printed.",
        "On the GC2, most convolutions fill all 1,216 tiles alone: no tile is free for other operators.",
    ),
    absent=(("fine over global barriers on GC2", "an IPU has only global barriers (BSP)"),),
)


def irregular_cell(spec: str = "v100") -> tuple[Source, Values]:
    """The cell that gains most from fine barriers: its operators, with rTasks and times, and what both plans take."""
    points = results.load(FIGURE)
    found = speedups(points, spec, "global", "rammer")
    if not found:
        raise RammerError("no cells are simulated yet", hint="python -m benchmarks.paper --only nasbench")
    number = int(np.argmax(np.where(gathered(points, spec, "irregular") > 0, found, 0)))
    own, cell = planner(spec), _cells()[number]
    graph = own.optimized(cell_graph(cell, own.operations))
    plan = own.plan(graph, RAMMER)
    wave_of = {n: w for w, wave in enumerate(graph.wavefronts(), 1) for n in wave}
    makers = {graph.storage(t).root: n for n, op in enumerate(graph.operators) for t in op.outputs}
    rows = []
    for n, (op, kernel) in enumerate(zip(graph.operators, plan.kernels, strict=True)):
        reads = sorted({makers[r] for t in op.inputs if (r := graph.storage(t).root) in makers and makers[r] != n})
        us = own.profiler.rtask_us(kernel)
        rows.append([n, op.name, op.kind, wave_of[n], kernel.num_rtasks, round(us, 3), reads])
    times = {name: round(own.cost(own.plan(graph, policy)).ms * 1e3, 3) for name, policy in POLICIES.items()}
    return own.source, {"cell": number, "operators": rows, "us": times}


def _draw_cell(points: Points) -> Drawn:
    if (point := points.get("v100")) is None:
        return Drawn()
    head = ("operator", "kind", "wave", "rTasks", "µs of one", "reads operators")
    rows = [
        (f"{n}: {name}", kind, str(wave), str(rtasks), f"{us:.2f}", ", ".join(map(str, reads)) or "the input")
        for n, name, kind, wave, rtasks, us, reads in point.values["operators"]
    ]
    us = point.values["us"]
    names = {
        "base": "RammerBase",
        "global": "global barriers",
        "rammer": "barrier-rTasks",
        "beyond": "beyond the paper",
    }
    panel = Panel(
        f"Cell {point.values['cell']}, simulated on spec v100",
        "µs",
        "bars",
        tuple(names.values()),
        {"execution time": tuple(us[name] for name in names)},
    )
    return Drawn((panel,), {"Its operators": [head, *rows]})


FIGURE_18 = Figure(
    name="figure18",
    title="Figure 18",
    caption="An irregular DFG generated by NASBench.",
    section="§5.2.5",
    how="Of all irregular cells of the study, the one that gains most from barrier-rTasks on the V100's spec.",
    jobs=lambda: [Job("v100", irregular_cell)],
    draw=_draw_cell,
    differs=("The paper's text does not define its module; this is another one, from our seed.",),
)
