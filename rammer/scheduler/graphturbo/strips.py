"""Choose groups that are worth computing in parts, and build a plan of them. Known as: overlapped tiling.

Where intermediate tensors exceed the private caches, every byte goes to a shared memory and back. Computed in parts of
some rows, it stays resident; in return, rows beside a border are computed twice. Paper: GraphTurbo §3.1, with all costs
estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain, pairwise, zip_longest
from math import inf, prod
from typing import NamedTuple

from rammer.cost.price import us_per_byte
from rammer.cost.residency import levels
from rammer.ir.analysis.parts import Box, full_box
from rammer.ir.device import Execution, SyncModel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import TensorId
from rammer.scheduler.assembly import Assembly
from rammer.scheduler.draft import Draft
from rammer.scheduler.graphturbo.cut import CACHED
from rammer.scheduler.graphturbo.in_parts import DIMS, InParts, Parted, can_be_cut, in_parts, needed
from rammer.scheduler.policies.waves import INTERPLAY, select_rkernels
from rammer.scheduler.policy import Problem
from rammer.scheduler.select import PriceTable

MOST_OPERATORS = 8  # of a group: recomputed rows add up from operator to operator
MOST_CUTS = 32  # groups of rows per image
MOST_PARTED = 768  # operators of parts: planning time grows with their number


class Priced(NamedTuple):
    """A group in parts: µs of memory traffic that it saves, and µs of repeated work, with all vEUs active."""

    group: Parted
    spared_us: float
    more_us: float


def worthwhile(problem: Problem, price_table: PriceTable) -> list[Priced]:
    """Return the disjoint groups that save most together; none where vEUs lack private caches."""
    spec, graph = problem.spec, problem.graph
    own = [m for m in spec.memory if m.owner == "veu" and m.managed == "cache"]
    if not own or spec.execution is not Execution.SIMD or spec.sync is not SyncModel.FINE:
        return []
    prices = _Prices(graph, spec, price_table)
    best: list[tuple[float, tuple[Priced, ...]]] = [(0.0, ())]  # gain and groups before each operator
    for last in range(len(graph.operators)):
        found = best[-1]
        for first, priced in prices.ending_at(last):
            us, groups = best[first]
            us += priced.spared_us - priced.more_us
            found = max(found, (us, (*groups, priced)), key=lambda entry: entry[0])
        best.append(found)
    return list(best[-1][1])


def gain_us(groups: Iterable[Priced]) -> float:
    """Return the µs that groups in parts are estimated to save together."""
    return sum(priced.spared_us - priced.more_us for priced in groups)


class _Prices:
    """Estimate what groups in parts save, in µs with all vEUs at work."""

    def __init__(self, graph: Graph, spec: VDeviceSpec, prices: PriceTable) -> None:
        self._graph, self._spec, self._prices = graph, spec, prices
        own = next(m for m in reversed(spec.memory) if m.owner == "veu" and m.managed == "cache")
        self._usable, self._room = own.usable_bytes, int(CACHED * own.nbytes)
        shared = next((n for n, (m, _) in enumerate(levels(spec)) if m.owner != "veu"), -1)
        self._read_us, self._write_us = us_per_byte(spec, spec.num_veus)[:, shared].tolist()
        self._bases = {view.base for view in graph.views.values()} | graph.views.keys()
        self._ports = {*graph.inputs, *graph.outputs}

    def ending_at(self, last: int) -> Iterator[tuple[int, Priced]]:
        """Yield groups that pay and end at an operator, with their first operator."""
        op = self._graph.operators[last]
        if len(op.outputs) != 1 or not self._is_cuttable(op.outputs[0]):
            return
        reach = 0
        for first in range(last - 1, max(last - MOST_OPERATORS, -1), -1):
            if (end := self._inner_until[first]) is None:
                return
            reach = max(reach, end)
            if reach <= last and (priced := self._priced(range(first, last + 1))) is not None:
                yield first, priced

    @cached_property
    def _inner_until(self) -> list[int | None]:
        """The last reader of each operator's result; None where the result must not lie inside of a group."""
        graph = self._graph
        found: list[int | None] = []
        for op in graph.operators:
            (result, *more), readers = op.outputs, graph.consumers.get(op.outputs[0])
            inner = not more and readers and result not in self._bases | self._ports and not op.operation.expr.into
            found.append(max(readers) if inner and readers else None)
        return found

    def _is_cuttable(self, tensor: TensorId) -> bool:
        """Return whether a tensor has rows to split, long ones: with all channels of a block."""
        kind = self._graph.types[tensor]
        return kind.rank > DIMS[1] and kind.layout is not None and can_be_cut(kind)

    def _variable(self, operator: int) -> list[TensorId]:
        """Return an operator's inputs that are not constants."""
        return [t for t in self._graph.operators[operator].inputs if t not in self._graph.constants]

    @cached_property
    def _op_bytes(self) -> list[int]:
        """Bytes that each operator reads and writes, without constants."""
        kinds = self._graph.types
        return [
            sum(kinds[t].filled_bytes for t in (*dict.fromkeys(self._variable(n)), *op.outputs))
            for n, op in enumerate(self._graph.operators)
        ]

    def _spared_us(self, operators: Sequence[int], images: int) -> float:
        """Return the µs of traffic beyond the private caches between operators of a group that is not split."""
        veus = self._spec.num_veus
        share = max(images, veus) if images % veus == 0 else veus
        missing = {n: min(max(self._op_bytes[n] / share - self._room, 0) / self._room, 1.0) for n in operators}
        us = 0.0
        for n in operators[:-1]:
            (result,) = self._graph.operators[n].outputs
            nbytes, readers = self._graph.types[result].filled_bytes, self._graph.consumers[result]
            us += nbytes / veus * (self._write_us * missing[n] + self._read_us * sum(missing[m] for m in readers))
        return us

    def _priced(self, operators: Sequence[int]) -> Priced | None:
        """Return a group in the fewest parts that fit, or None if that does not pay."""
        graph, veus = self._graph, self._spec.num_veus
        (result,) = graph.operators[operators[-1]].outputs
        shape = graph.types[result].shape
        spared_us = self._spared_us(operators, shape[0])
        if spared_us <= 0:
            return None
        cuts = 1 if shape[0] % veus == 0 else veus
        while cuts <= min(MOST_CUTS, shape[DIMS[1]]):
            boxes = _boxes(shape, cuts)
            inner = max(boxes[1:-1] or boxes, key=lambda box: box[DIMS[1]][1] - box[DIMS[1]][0])
            more_us = self._more_us(operators, inner, len(boxes))
            if more_us is not None:
                group = Parted(tuple(operators), boxes)
                return Priced(group, spared_us, more_us) if more_us < spared_us else None
            cuts *= 2
        return None

    def _more_us(self, operators: Sequence[int], box: Box, parts: int) -> float | None:
        """Return the µs of repeated computing and reading for so many parts like this one.

        None if it does not fit into the private caches, or cannot be computed in parts.
        """
        graph, spec = self._graph, self._spec
        found = needed(graph, operators, box)
        if found is None:
            return None
        kinds = graph.types
        share = {t: prod(high - low for low, high in places) / kinds[t].size for t, places in found.tensors.items()}
        (result,) = graph.operators[operators[-1]].outputs
        twice = {t: max(part / share[result] - 1, 0.0) for t, part in share.items()}
        made = [t for n in operators for t in graph.operators[n].outputs]
        read = [dict.fromkeys(self._variable(n)) for n in operators]
        outside = set().union(*read).difference(made)
        if not all(can_be_cut(kinds[t]) for t in outside):
            return None
        peak = max(sum(kinds[t].filled_bytes * share[t] for t in (*r, t)) for r, t in zip(read, made, strict=True))
        if peak > self._room:
            return None
        work_us = (self._prices.options(graph.operators[n].operation).efficient.work_us for n in operators)
        more_us = sum(us * twice[t] for us, t in zip(work_us, made, strict=True))
        nbytes = sum(kinds[t].filled_bytes * twice[t] for t in outside)
        weights = sum(kinds[t].nbytes for n in operators for t in graph.operators[n].statics)
        if weights + peak > self._usable:
            nbytes += weights * (parts - spec.num_veus)
        return float(more_us + nbytes * self._read_us + parts * len(operators) * spec.barrier_us) / spec.num_veus


def _boxes(shape: Sequence[int], cuts: int) -> tuple[Box, ...]:
    """Split each image of a tensor into so many groups of rows."""
    found = []
    for image in range(shape[0]):
        for rows in pairwise(shape[DIMS[1]] * n // cuts for n in range(cuts + 1)):
            box = list(full_box(shape))
            box[DIMS[0]], box[DIMS[1]] = (image, image + 1), rows
            found.append(tuple(box))
    return tuple(found)


class PartedProblem(NamedTuple):
    """A problem whose graph is in parts."""

    problem: Problem
    prices: PriceTable
    found: InParts


def in_worthwhile_parts(problem: Problem, prices: PriceTable) -> PartedProblem | None:
    """Return the problem with those groups in parts that pay, also by the times of the parts' own rKernels.

    None if there are no such groups, or no rKernels for parts.
    """
    groups = _within_limit(worthwhile(problem, prices))
    if not groups:
        return None
    found = in_parts(problem.graph, [priced.group for priced in groups])
    if (parted := problem.of(found.graph, 1)) is None:
        return None
    parted = parted.usual
    left = [priced for priced, parts in zip(groups, found.parts, strict=True) if _pays(problem, priced, parted, parts)]
    if len(left) < len(groups):
        found = in_parts(problem.graph, [priced.group for priced in left])
        parted = replace(parted, graph=found.graph)
    return PartedProblem(parted, PriceTable(parted), found) if left else None


def _within_limit(groups: Sequence[Priced]) -> list[Priced]:
    """Return the groups that save most per operator, up to MOST_PARTED operators: each takes planning time."""
    found: list[Priced] = []
    room = MOST_PARTED
    for priced in sorted(groups, key=lambda p: (p.more_us - p.spared_us) / len(p.group.boxes) / len(p.group.operators)):
        if (operators := len(priced.group.boxes) * len(priced.group.operators)) <= room:
            found.append(priced)
            room -= operators
    return sorted(found, key=lambda priced: priced.group.operators)


def _pays(problem: Problem, priced: Priced, parted: Problem, parts: Iterable[Iterable[int]]) -> bool:
    """Return whether a group's parts save more time than they cost, by the times of their own rKernels."""
    more_us = _work_us(parted, chain(*parts)) - _work_us(problem, priced.group.operators)
    return more_us < priced.spared_us * problem.spec.num_veus


def _work_us(problem: Problem, operators: Iterable[int]) -> float:
    """Return the least vEU time of operators, in µs."""

    @cache
    def least_us(operation: Operation) -> float:
        kernels = [k for k in problem.candidates[operation] if k.fits(problem.spec)]
        return min((problem.profiler.rtask_us(k) * k.num_rtasks for k in kernels), default=inf)

    return sum(least_us(problem.graph.operators[n].operation) for n in operators)


def build_plan(laid: PartedProblem, policy: str, notes: Sequence[str]) -> ExecutionPlan:
    """Build the plan of a graph in parts: each vEU gets neighbouring parts, and all other operators go wave by wave."""
    problem, prices, found = laid
    draft, assembly = Draft(problem, prices), Assembly(problem.spec)
    draft.kernels |= least_work(laid)
    begin = 0
    for parts in (*found.parts, ()):
        end = parts[0][0] if parts else len(problem.graph.operators)
        for wave in problem.graph.wavefronts_of(range(begin, end)):
            options = {n: draft.options(n) for n in wave}
            trial = select_rkernels(draft, options, assembly, INTERPLAY)
            draft.kernels.update(trial.kernels)
            draft.record_homes(trial.placed)
        for veu, operators in _in_turn(parts, problem.spec.num_veus):
            for n in operators:
                for task, needs in draft.tasks([n], assembly):
                    assembly.place(task, veu, draft.rtask_us(n), needs)
        begin = parts[-1][-1] + 1 if parts else end
    programs = [] if assembly.is_empty else [assembly.build()]
    return draft.finish(policy, programs, assembly.time_us, notes)


def least_work(laid: PartedProblem) -> dict[int, RKernel]:
    """Return the rKernels of the least work for operators of parts, each of which runs on one vEU."""
    operators = laid.problem.graph.operators
    options = {n: laid.prices.fitting(operators[n].operation) for row in laid.found.parts for part in row for n in part}
    return {n: min(some, key=lambda o: (o.work_us, o.kernel.num_rtasks)).kernel for n, some in options.items()}


def _in_turn(parts: Sequence[tuple[int, ...]], veus: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (vEU, part), in turn over the vEUs; each vEU gets neighbouring parts."""
    shares = [range(len(parts) * veu // veus, len(parts) * (veu + 1) // veus) for veu in range(veus)]
    for turn in zip_longest(*shares):
        yield from ((veu, parts[at]) for veu, at in enumerate(turn) if at is not None)
