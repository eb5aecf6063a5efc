"""Move rTasks to the vEUs that hold their operands, between global barriers. Known as: owner computes.

For devices with only private memory; beyond the papers. An element lives on the vEU that writes it, or on its only
reader's. It is sent to every other vEU that reads it. rTasks move within a step, the slots between two global barriers.
No vEU works longer in a step than the longest one did before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import Elements, read_elements, written_elements
from rammer.ir.analysis.intervals import expand, union
from rammer.ir.analysis.storage import constant_key
from rammer.ir.device import SyncModel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RProgramBuilder, RTask, TaskUid
from rammer.ir.tensor import Layout, TensorId

Numbers: TypeAlias = NDArray[np.int64]
Owner: TypeAlias = tuple[TensorId, Layout | None]  # of memory; a constant has one for each layout in which it is read
Places: TypeAlias = dict[int, dict[int, int]]  # operator -> rTask -> vEU

WORTH_MOVING = 0.95  # ratio of bytes sent; where the backend puts constants of several readers is unknown
MOST_LOOKED = 1 << 23  # rTasks of an operator times vEUs; with more, rTasks are not moved
NOBODY, SEVERAL = -1, -2  # homes: not touched yet; read by several vEUs


def consumed_near(plan: ExecutionPlan) -> ExecutionPlan:
    """Move rTasks of a plan to vEUs that hold their operands, if at least 5% fewer bytes are sent.

    Returns the plan unchanged where vEUs share a memory, or barriers are not global.
    """
    if not (plan.spec.private and plan.spec.sync is SyncModel.GLOBAL):
        return plan
    known, moved, programs = _Homes(plan), _Homes(plan), []
    before = after = 0
    for program in plan.programs:
        steps = _steps(program)
        before += sum(map(known.run, steps))
        for number, step in enumerate(steps):
            steps[number] = moved.best(step)
            after += moved.run(steps[number])
        programs.append(_program(steps, plan.spec.num_veus))
    if after >= WORTH_MOVING * before:
        return plan
    note = f"sent to vEUs: {after:,} bytes ({before:,} with rTasks in order)"
    return replace(plan, programs=tuple(programs), memory=None, notes=(*plan.notes, note))


def _program(steps: Sequence[Places], num_veus: int) -> RProgram:
    """Build an rProgram of steps, with global barriers between them."""
    builder = RProgramBuilder(num_veus)
    for number, step in enumerate(steps):
        if number:
            builder.sync()
        for op in sorted(step):
            for rtask in sorted(step[op]):
                builder.append(TaskUid(op, rtask), step[op][rtask])
    return builder.build()


def _steps(program: RProgram) -> list[Places]:
    """Split an rProgram at its global barriers."""
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


class _Operand(NamedTuple):
    """What rTasks read of one input: elements of an owner of memory, from `shift` on."""

    owner: Owner
    shift: int
    elements: Elements
    element_bytes: int
    written: bool  # whether rTasks write it: then their vEUs are its homes

    def readers(self, places: Mapping[int, int]) -> Iterator[tuple[list[int], Numbers]]:
        """Yield the vEUs whose rTasks read the same elements, and those elements of the owner."""
        of_veu: dict[int, set[int]] = defaultdict(set)
        for rtask, veu in places.items():
            of_veu[veu].add(self.elements.chosen[rtask])
        veus: dict[frozenset[int], list[int]] = defaultdict(list)
        for veu, some in of_veu.items():
            veus[frozenset(some)].append(veu)
        yield from ((each, self.where(some)) for some, each in veus.items())

    def where(self, some: frozenset[int]) -> Numbers:
        return expand(union([self.elements.sets[n] for n in some])) + self.shift


class _Homes:
    """The vEU on which every element lies, as rTasks run step by step."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan, self._veus = plan, plan.spec.num_veus
        self._homes: dict[Owner, NDArray[np.int32]] = {}

    def run(self, step: Places) -> int:
        """Let a step's rTasks read and write; return the bytes that are sent to vEUs for it."""
        sent = 0
        for op in sorted(step):
            sent += self._sent(op, step[op])
            for operand in self._operands(op):
                home = self._homes[operand.owner]
                for veus, where in operand.readers(step[op]) if not operand.written else ():
                    veu = veus[0] if len(veus) == 1 else SEVERAL
                    home[where] = np.where((home[where] == NOBODY) | (home[where] == veu), veu, SEVERAL)
            for position, tensor in enumerate(self._plan.graph.operators[op].outputs):
                root, shift = self._plan.graph.storage(tensor)
                home = self._home((root, None), self._plan.graph.types[root].span)
                elements = written_elements(self._plan.kernels[op], position)
                for rtask, veu in step[op].items():
                    for low, high in elements[rtask].tolist():
                        home[low + shift : high + shift] = veu
        return sent

    def best(self, step: Places) -> Places:
        """Place a step's rTasks, the longest first, where most of their operands lie.

        Returns the step unchanged if that does not send fewer bytes, or if no vEU is free for long enough.
        """
        us = {op: self._plan.rtask_us[self._plan.kernels[op]] for op in step}
        load = np.zeros(self._veus)
        for op, places in step.items():
            np.add.at(load, list(places.values()), us[op])
        longest, load = load.max(initial=0.0), np.zeros(self._veus)
        found: Places = {}
        for op in sorted(step, key=lambda op: (-us[op], op)):
            often = (longest - load) / us[op] + 1e-6 if us[op] else np.full(self._veus, len(step[op]))
            options = list(self._options(op, step[op], often.astype(np.int64)))
            if not options:
                return step
            found[op] = min(options, key=lambda places: self._sent(op, places))
            np.add.at(load, list(found[op].values()), us[op])
        before, after = (sum(self._sent(op, each[op]) for op in step) for each in (step, found))
        return found if after < before else step

    def _options(self, operator: int, before: Mapping[int, int], free: Numbers) -> Iterator[dict[int, int]]:
        """Yield placements of rTasks that give each vEU at most `free` of them.

        They are: the present one, if it fits; each rTask where most of its operands lie; and neighbouring rTasks
        together, so that shared operands are sent once.
        """
        rtasks = sorted(before)
        known = [before[r] for r in rtasks]
        if (np.bincount(known, minlength=self._veus) <= free).all():
            yield dict(before)
        if len(rtasks) * self._veus > MOST_LOOKED:
            return
        there = self._there(operator, rtasks)
        for size in sorted({1, -(-len(rtasks) // max(int((free > 0).sum()), 1))}):
            together = np.add.reduceat(there, range(0, len(rtasks), size))
            if veus := _assigned(together, free // size, known[::size]):
                yield {r: veus[n // size] for n, r in enumerate(rtasks)}

    def _sent(self, operator: int, places: Mapping[int, int]) -> int:
        """Count the bytes that are sent to vEUs for an operator."""
        total = 0
        for operand in self._operands(operator):
            home, found = self._homes[operand.owner], list(operand.readers(places))
            readers = np.zeros(len(home), np.int32)
            for veus, where in found:
                readers[where] += len(veus)
            for veus, where in found:
                lies = home[where]
                here = np.bincount(lies[lies >= 0], minlength=self._veus)[veus].sum()
                alone = 0 if operand.written else ((lies == NOBODY) & (readers[where] == 1)).sum()
                total += int(len(where) * len(veus) - here - alone) * operand.element_bytes
        return total

    def _there(self, operator: int, rtasks: Sequence[int]) -> Numbers:
        """Count the bytes of each rTask's operands that lie on each vEU, [rTask, vEU]."""
        total = np.zeros((len(rtasks), self._veus), np.int64)
        for operand in self._operands(operator):
            home, chosen = self._homes[operand.owner], [operand.elements.chosen[r] for r in rtasks]
            rows = {}
            for n in set(chosen):
                lies = home[operand.where(frozenset((n,)))]
                rows[n] = np.bincount(lies[lies >= 0], minlength=self._veus) * operand.element_bytes
            total += np.array([rows[n] for n in chosen])
        return total

    def _operands(self, operator: int) -> Iterator[_Operand]:
        graph, kernel = self._plan.graph, self._plan.kernels[operator]
        inputs = zip(graph.operators[operator].inputs, kernel.input_types(), strict=True)
        for position, (tensor, kind) in enumerate(inputs):
            root, shift = graph.storage(tensor)
            owner: Owner = root, None
            size = graph.types[root].span
            if root in graph.constants:
                owner, shift = constant_key(graph, tensor, kind.layout)
                size = max(size, kind.span)
            self._home(owner, size)
            written = root not in graph.constants and root not in graph.inputs
            yield _Operand(owner, shift, read_elements(kernel, position), kind.element_bytes, written)

    def _home(self, owner: Owner, size: int) -> NDArray[np.int32]:
        if owner not in self._homes:
            self._homes[owner] = np.full(size, NOBODY, np.int32)
        return self._homes[owner]


def _assigned(there: Numbers, free: Numbers, before: Sequence[int]) -> list[int] | None:
    """Assign a vEU to each row of `there`, [rTask, vEU] bytes: greedily by most bytes, each vEU at most `free` times.

    Bytes that all rTasks read are ignored; on ties an rTask stays where it was. None if there are not enough free
    slots.
    """
    gain = there - there.min(axis=0, initial=np.iinfo(np.int64).max)
    rows, columns = np.nonzero(gain)
    order = np.lexsort((columns, rows, columns != np.array(before)[rows], -gain[rows, columns]))
    pairs = zip(rows[order].tolist(), columns[order].tolist(), strict=True)
    found: dict[int, int] = {}
    left = free.tolist()
    for row, veu in (*pairs, *enumerate(before)):
        if row not in found and left[veu] > 0:
            found[row] = veu
            left[veu] -= 1
    others = iter(np.repeat(np.arange(len(left)), left).tolist())
    places = [found[row] if row in found else next(others, -1) for row in range(len(before))]
    return None if -1 in places else places
