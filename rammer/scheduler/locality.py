"""Results consumed where they lie: between global barriers, rTasks go to vEUs that have most of what they read.

Where vEUs have nothing but memory of their own, an element lives with the rTask that writes it, or that is the only one
to read it, and every other vEU that reads it is sent it, once a step. Steps between global barriers have the rTasks
that they had, and no vEU has longer work in one than some vEU had before. Beyond the papers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.dependency import Elements, read_elements, written_elements
from rammer.ir.device import SyncModel
from rammer.ir.graph import Graph
from rammer.ir.intervals import expand, union
from rammer.ir.kernel import RKernel
from rammer.ir.memory import constant_key
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RProgramBuilder, RTask, TaskUid
from rammer.ir.tensor import Layout, TensorId

Numbers: TypeAlias = NDArray[np.int64]
Owner: TypeAlias = tuple[TensorId, Layout | None]  # of memory; a constant has one for each layout in which it is read
Places: TypeAlias = dict[int, dict[int, int]]  # operator -> rTask -> vEU

WORTH_MOVING = 0.95  # of what the exchange takes: constants that several vEUs read lie where the backend has room
MOST_LOOKED = 1 << 23  # rTasks of an operator, times vEUs: with more it stays as it is
MOST_PAIRS = 1 << 20  # of these, what has some gain and is looked at
NOBODY, SEVERAL = -1, -2  # the home of an element that nobody has touched yet, and of one that several vEUs read


class Traffic(NamedTuple):
    """Bytes that vEUs read, those of them that they are sent, and how many a vEU sends or is sent at most.

    Of steps the sums.
    """

    read: int
    sent: int
    most: int

    def cost(self, num_veus: int) -> float:
        """What the exchange takes, in bytes of a vEU: the busiest one's, and all others', as that may be another's."""
        return self.most + self.sent / num_veus


def consumed_near(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with rTasks on other vEUs, so that less is sent; the same one if hardly less is, where vEUs share some
    memory, and where barriers are not global.
    """
    if not (plan.spec.private and plan.spec.sync is SyncModel.GLOBAL):
        return plan
    found: list[RProgram] = []
    before, after = traffic(plan), traffic(plan, found)
    if after.cost(plan.spec.num_veus) >= WORTH_MOVING * before.cost(plan.spec.num_veus):
        return plan
    note = f"sent to vEUs: {after.sent:,} of {after.read:,} bytes that they read ({before.sent:,} of {before.read:,})"
    return replace(plan, programs=tuple(found), memory=None, notes=(*plan.notes, note))


def traffic(plan: ExecutionPlan, moved: list[RProgram] | None = None) -> Traffic:
    """What a plan's vEUs read, and what is sent to them; with rTasks where less is, in rPrograms put into `moved`."""
    homes = _Homes(plan.graph, plan.kernels, plan.spec.num_veus)
    total = Traffic(0, 0, 0)
    for program in plan.programs:
        steps = _steps(program)
        for number, step in enumerate(steps):
            if moved is not None:
                step = steps[number] = _moved(homes, step, {op: plan.rtask_us[plan.kernels[op]] for op in step})
            for op in sorted(step):
                total = Traffic(*map(sum, zip(total, homes.traffic(op, step[op]), strict=True)))
                homes.settle(op, step[op])
        if moved is not None:
            moved.append(_program(steps, plan.spec.num_veus))
    return total


def _program(steps: Sequence[Places], num_veus: int) -> RProgram:
    """Steps with global barriers between them."""
    builder = RProgramBuilder(num_veus)
    for number, step in enumerate(steps):
        if number:
            builder.sync()
        for op in sorted(step):
            for rtask in sorted(step[op]):
                builder.append(TaskUid(op, rtask), step[op][rtask])
    return builder.build()


def _steps(program: RProgram) -> list[Places]:
    """What lies between global barriers."""
    steps: list[Places] = []
    for veu, lane in enumerate(program.lanes):
        number = 0
        for slot in lane:
            if isinstance(slot, RTask):
                steps += [{} for _ in range(number + 1 - len(steps))]
                steps[number].setdefault(slot.uid.operator_id, {})[slot.uid.rtask_id] = veu
            else:
                number += 1
    return steps


def _moved(homes: _Homes, step: Places, us: Mapping[int, float]) -> Places:
    """A step's rTasks, those that take longest first, where least is sent for them; as it was if that is as good, or if
    somewhere no vEU is free for long enough.
    """
    load = np.zeros(homes.num_veus)
    for op, places in step.items():
        np.add.at(load, list(places.values()), us[op])
    longest, load = load.max(initial=0.0), np.zeros(homes.num_veus)
    found: Places = {}
    for op in sorted(step, key=lambda op: (-us[op], op)):
        often = (longest - load) / us[op] + 1e-6 if us[op] else np.full(homes.num_veus, len(step[op]))
        best = homes.best(op, step[op], often.astype(np.int64))
        if best is None:
            return step
        np.add.at(load, list(best.values()), us[op])
        found[op] = best
    better, known = (sum(homes.cost(op, each[op]) for op in step) for each in (found, step))
    return found if better < known else step


class _Operand(NamedTuple):
    """What rTasks read of one input: elements of an owner of memory, from `shift` on."""

    owner: Owner
    shift: int
    elements: Elements
    span: int
    element_bytes: int
    written: bool  # by rTasks, who so decide where it lies

    def sets(self, places: Mapping[int, int]) -> dict[frozenset[int], list[int]]:
        """For vEUs, the sets of elements that their rTasks read; vEUs that read the same together."""
        of_veu: dict[int, set[int]] = defaultdict(set)
        for rtask, veu in places.items():
            of_veu[veu].add(self.elements.chosen[rtask])
        found: dict[frozenset[int], list[int]] = defaultdict(list)
        for veu, some in of_veu.items():
            found[frozenset(some)].append(veu)
        return found

    def where(self, some: frozenset[int]) -> Numbers:
        """Elements of the owner."""
        return expand(union([self.elements.sets[n] for n in some])) + self.shift


class _Homes:
    """The vEU on which every element lies, as rTasks get theirs step by step."""

    def __init__(self, graph: Graph, kernels: Sequence[RKernel], num_veus: int) -> None:
        self.num_veus = num_veus
        self._graph, self._kernels = graph, kernels
        self._homes: dict[Owner, NDArray[np.int32]] = {}
        self._versions: dict[Owner, int] = defaultdict(int)  # of homes that nobody writes
        self._settled: set[Hashable] = set()
        self._keys: dict[int, Hashable] = {}  # of operators, until another one is settled
        self._best: dict[Hashable, list[int] | None] = {}  # steps are alike
        self._traffic: dict[Hashable, Traffic] = {}

    def best(self, operator: int, before: Mapping[int, int], free: Numbers) -> dict[int, int] | None:
        """vEUs for some rTasks of an operator, each used so often at most, for which least is sent: as they were, each
        for itself where most of what it reads is, or neighbours together that read the same of some operand.

        None if vEUs are too seldom free.
        """
        rtasks = sorted(before)
        known = [before[r] for r in rtasks]
        key = (self._key(operator), tuple(rtasks), tuple(known), free.tobytes())
        if key not in self._best:
            options = [known] if (np.bincount(known, minlength=self.num_veus) <= free).all() else []
            options += self._options(operator, rtasks, known, free)
            costs = [self.cost(operator, dict(zip(rtasks, veus, strict=True))) for veus in options]
            self._best[key] = options[costs.index(min(costs))] if costs else None
        veus = self._best[key]
        return None if veus is None else dict(zip(rtasks, veus, strict=True))

    def _options(
        self, operator: int, rtasks: Sequence[int], before: Sequence[int], free: Numbers
    ) -> Iterator[list[int]]:
        if len(rtasks) * self.num_veus > MOST_LOOKED:
            return
        there = self._there(operator, rtasks)
        if veus := _assigned(there, free, before):
            yield veus
        size = -(-len(rtasks) // max(int((free > 0).sum()), 1))
        if size == 1:
            return
        orders = {tuple(range(len(rtasks)))}
        for operand in self._operands(operator):
            orders.add(tuple(sorted(range(len(rtasks)), key=lambda n: (operand.elements.chosen[rtasks[n]], n))))
        for order in sorted(orders):
            groups = [order[n : n + size] for n in range(0, len(order), size)]
            together = np.array([there[list(g)].sum(axis=0) for g in groups])
            if veus := _assigned(together, free // size, [before[g[0]] for g in groups]):
                of = {n: veu for group, veu in zip(groups, veus, strict=True) for n in group}
                yield [of[n] for n in range(len(rtasks))]

    def cost(self, operator: int, places: Mapping[int, int]) -> float:
        """What the exchange takes for an operator."""
        return self.traffic(operator, places).cost(self.num_veus)

    def traffic(self, operator: int, places: Mapping[int, int]) -> Traffic:
        """What vEUs read for an operator, and what is sent to them."""
        key = (self._key(operator), tuple(sorted(places.items())))
        if key not in self._traffic:
            read, received, sent = (np.zeros(self.num_veus, np.int64) for _ in range(3))
            for operand in self._operands(operator):
                parts = self._of_each(operand, places)
                for total, part in zip((read, received, sent), parts, strict=True):
                    total += part * operand.element_bytes
            most = max(int(received.max(initial=0)), int(sent.max(initial=0)))
            self._traffic[key] = Traffic(int(read.sum()), int(received.sum()), most)
        return self._traffic[key]

    def _of_each(self, operand: _Operand, places: Mapping[int, int]) -> tuple[Numbers, Numbers, Numbers]:
        """Elements that each vEU reads, is sent, and sends."""
        home = self._homes[operand.owner]
        read, near = np.zeros(self.num_veus, np.int64), np.zeros(self.num_veus, np.int64)
        leaves = np.zeros(len(home), np.bool_)
        found = [(veus, operand.where(some)) for some, veus in operand.sets(places).items()]
        alone = np.zeros_like(leaves) if operand.written else self._read_by_one(home, found)
        for veus, where in found:
            lies = home[where]
            read[veus] += len(where)
            near[veus] += np.bincount(lies[lies >= 0], minlength=self.num_veus)[veus] + alone[where].sum()
            leaves[where] |= (lies >= 0) & ((lies != veus[0]) | (len(veus) > 1))
        return read, read - near, np.bincount(home[leaves], minlength=self.num_veus)

    @staticmethod
    def _read_by_one(home: NDArray[np.int32], found: Sequence[tuple[list[int], Numbers]]) -> NDArray[np.bool_]:
        """Elements that nobody has touched yet, and one vEU reads: they will live there."""
        readers = np.zeros(len(home), np.int32)
        for veus, where in found:
            readers[where] += len(veus)
        alone: NDArray[np.bool_] = (home == NOBODY) & (readers == 1)
        return alone

    def settle(self, operator: int, places: Mapping[int, int]) -> None:
        """An operator's rTasks are there: what they write has its home, and what only one of them reads."""
        self._keys.clear()
        for operand in self._operands(operator):
            if not operand.written:
                self._live_with_reader(operand, places)
        for position, tensor in enumerate(self._graph.operators[operator].outputs):
            root, shift = self._graph.storage(tensor)
            home = self._home((root, None), self._graph.types[root].span)
            elements = written_elements(self._kernels[operator], position)
            for rtask, veu in places.items():
                for low, high in elements[rtask].tolist():
                    home[low + shift : high + shift] = veu

    def _live_with_reader(self, operand: _Operand, places: Mapping[int, int]) -> None:
        key = (operand.owner, operand.shift, operand.elements, tuple(sorted(places.items())))
        if key in self._settled:
            return
        self._settled.add(key)
        self._versions[operand.owner] += 1
        home = self._homes[operand.owner]
        for some, veus in operand.sets(places).items():
            where = operand.where(some)
            veu = veus[0] if len(veus) == 1 else SEVERAL
            home[where] = np.where((home[where] == NOBODY) | (home[where] == veu), veu, SEVERAL)

    def _there(self, operator: int, rtasks: Sequence[int]) -> Numbers:
        """Bytes of what rTasks read that lie on each vEU, [rTask, vEU]."""
        total = np.zeros((len(rtasks), self.num_veus), np.int64)
        for operand in self._operands(operator):
            home, chosen = self._homes[operand.owner], [operand.elements.chosen[r] for r in rtasks]
            rows = {}
            for n in set(chosen):
                lies = home[operand.where(frozenset((n,)))]
                rows[n] = np.bincount(lies[lies >= 0], minlength=self.num_veus) * operand.element_bytes
            total += np.array([rows[n] for n in chosen])
        return total

    def _key(self, operator: int) -> Hashable:
        """What an operator's rTasks find: alike for those of steps that are alike."""
        if operator not in self._keys:
            found: list[Hashable] = [self._kernels[operator]]
            for operand in self._operands(operator):
                owner, first = operand.owner, operand.shift
                lies = self._homes[owner][first : first + operand.span]
                found.append(
                    sha256(lies.tobytes()).digest() if operand.written else (owner, self._versions[owner], first)
                )
            self._keys[operator] = tuple(found)
        return self._keys[operator]

    def _operands(self, operator: int) -> Iterator[_Operand]:
        graph, kernel = self._graph, self._kernels[operator]
        for position, (tensor, kind) in enumerate(
            zip(graph.operators[operator].inputs, kernel.input_types(), strict=True)
        ):
            root, shift = graph.storage(tensor)
            owner: Owner = root, None
            size = graph.types[root].span
            if root in graph.constants:
                owner, shift = constant_key(graph, tensor, kind.layout)
                size = max(size, kind.span)
            self._home(owner, size)
            written = root not in graph.constants and root not in graph.inputs
            elements = read_elements(kernel, position)
            yield _Operand(owner, shift, elements, kind.span, kind.element_bytes, written)

    def _home(self, owner: Owner, size: int) -> NDArray[np.int32]:
        if owner not in self._homes:
            self._homes[owner] = np.full(size, NOBODY, np.int32)
        return self._homes[owner]


def _assigned(there: Numbers, free: Numbers, before: Sequence[int]) -> list[int] | None:
    """A vEU for each rTask, of bytes that are `there`, [rTask, vEU]: the most first, where a vEU is free so often.

    What all rTasks read decides nothing; among equals, an rTask stays where it was. None if vEUs are too seldom free.
    """
    gain = there - there.min(axis=0, initial=np.iinfo(np.int64).max)
    rows, columns = np.nonzero(gain)
    stays = columns == np.array(before)[rows]
    order = np.lexsort((columns, rows, ~stays, -gain[rows, columns]))[:MOST_PAIRS]
    pairs = zip(rows[order].tolist(), columns[order].tolist(), strict=True)
    found: dict[int, int] = {}
    left = free.tolist()
    for row, veu in (*pairs, *enumerate(before)):
        if row not in found and left[veu] > 0:
            found[row] = veu
            left[veu] -= 1
    others = iter(np.repeat(np.arange(len(left)), left).tolist())
    for row in range(len(before)):
        if row not in found:
            if (veu := next(others, -1)) < 0:
                return None
            found[row] = veu
    return [found[row] for row in range(len(before))]
