"""Estimate the extra cost of weights in a plan, which a measurement of their rKernel alone does not contain.

An rKernel alone finds its weights where its last run left them. In a plan, other operators evict them in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rammer.cost.price import us_per_byte
from rammer.cost.residency import levels
from rammer.ir.analysis.dependency import read_elements
from rammer.ir.device import VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.tensor import TensorId


def streamed_bytes(graph: Graph) -> int:
    """Return the bytes that one run brings into caches: what is read of constants, and the outputs of operators."""
    constants: Counter[TensorId] = Counter()
    for op in graph.operators:
        for (name, kind), tensor in zip(op.operation.expr.inputs, op.inputs, strict=True):
            root = graph.storage(tensor).root
            if root in graph.constants and constants[root] < (nbytes := graph.types[root].nbytes):
                most = op.operation.expr.most_read(name) * kind.element_bytes
                constants[root] = int(min(constants[root] + most, nbytes))
    return constants.total() + sum(graph.types[t].filled_bytes for op in graph.operators for t in op.outputs)


def statics_us(kernel: RKernel, spec: VDeviceSpec, streamed: int, stalls: tuple[float, float] = (1.0, 1.0)) -> float:
    """Return how many microseconds longer one rTask takes if `streamed` bytes come between two uses of its weights.

    0 if the rKernel's own operands are more than that: its measurement had them equally cold. `stalls` are those of its
    price, for caches and for main memory. At 1.0 a fetch takes as long as the rates say.
    """
    static = [n for n, is_static in enumerate(kernel.operation.static) if is_static]
    if not static or not kernel.num_rtasks:
        return 0.0
    expr = kernel.operation.expr
    alone = int(sum(kernel.bytes_read())) + sum(t.filled_bytes for t in kernel.operation.outputs)
    veus = min(spec.num_veus, kernel.num_rtasks)
    in_turn = _fetch_us(spec, alone, 1, stalls)
    in_plan = _fetch_us(spec, max(streamed, alone), spec.num_veus, stalls)
    fetched_alone, fetched = 0.0, 0.0
    for n in static:
        itemsize = kernel.input_types()[n].element_bytes
        elements = read_elements(kernel, n)
        sizes = [int((spans[:, 1] - spans[:, 0]).sum()) * itemsize for spans in elements.sets]
        each = (sizes[which] * min(rtasks, veus) for which, rtasks in Counter(elements.chosen).items())
        most = expr.most_read(expr.inputs[n][0]) * itemsize
        fetched_alone, fetched = fetched_alone + min(sum(sizes), most), fetched + min(sum(each), most)
    return max(fetched * in_plan - fetched_alone * in_turn, 0.0) / kernel.num_rtasks


def _fetch_us(spec: VDeviceSpec, passed: int, veus: int, stalls: tuple[float, float]) -> float:
    """Return microseconds per byte after `passed` other bytes. `veus` vEUs fetch at once; each passed a part."""
    found, left = 0.0, 1.0
    rates: Iterable[float] = us_per_byte(spec, veus)[0]
    known = list(zip(levels(spec), rates, strict=True))
    for n, ((level, written), us) in enumerate(known):
        if written or level.managed == "scratch":  # weights are found in caches
            continue
        last = n == len(known) - 1
        through = passed * level.sharing(veus) / veus
        there = 1.0 if last else level.kept(through)
        found += left * there * us * stalls[last]
        left *= 1 - there
    return found
