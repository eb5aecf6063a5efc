"""Move rTasks to the vEUs that hold their operands, between global barriers. Known as: owner computes.

For devices with only private memory; beyond the papers. An element lives on the vEU that writes it, or on its only
reader's. It is sent to every other vEU that reads it. rTasks move within a step, the slots between two global barriers.
No vEU works longer in a step than the longest one did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.intervals import expand
from rammer.ir.analysis.storage import constant_key
from rammer.ir.device import SyncModel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RProgramBuilder, RTask, TaskUid
from rammer.ir.tensor import Layout, TensorId, TensorType

Numbers: TypeAlias = NDArray[np.int64]
Places: TypeAlias = dict[int, dict[int, int]]  # operator -> rTask -> vEU

WORTH_MOVING = 0.95  # ratio of bytes sent; where the backend puts constants of several readers is unknown
MOST_LOOKED = 1 << 23  # rTasks of an operator times vEUs; with more, no rTask is moved


def place_by_owner(plan: ExecutionPlan) -> ExecutionPlan:
    """Move rTasks of a plan to vEUs that hold their operands, if at least 5% fewer bytes are sent.

    Returns the plan unchanged where vEUs share a memory, or barriers are not global.
    """
    looked = max((kernel.num_rtasks for kernel in plan.kernels), default=0) * plan.spec.num_veus
    if not plan.spec.private or plan.spec.sync is not SyncModel.GLOBAL or looked > MOST_LOOKED:
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
    """What rTasks read of one input: distinct sets of elements, and the set of each rTask.

    `lying`: bytes of each set on each vEU, [set, vEU + 1]; the last column is for elements without a home.
    """

    sets: Sequence[Numbers]
    chosen: Numbers
    home: Numbers  # the vEU of each element; as many as there are, if it has none yet
    lying: Numbers

    def readers(self, places: Mapping[int, int]) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Return which sets rTasks at these places read, on which vEUs, and whether a set has one vEU alone."""
        sets, veus = np.unique(np.column_stack((self.chosen[list(places)], list(places.values()))), axis=0).T
        return sets, veus, np.bincount(sets)[sets] == 1

    def sent(self, places: Mapping[int, int]) -> int:
        """Count the bytes that are sent to vEUs. Sets that overlap count as if they did not."""
        sets, veus, alone = self.readers(places)
        there = self.lying[sets, veus] + np.where(alone, self.lying[sets, -1], 0)
        return int((self.lying.sum(axis=1)[sets] - there).sum())


class _Homes:
    """The vEU on which every element lies, as rTasks run step by step."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan, self._veus = plan, plan.spec.num_veus
        self._homes: dict[tuple[TensorId, Layout | None], Numbers] = {}  # a constant has some for each layout

    def run(self, step: Places) -> int:
        """Let a step's rTasks read and write; return the bytes that are sent to vEUs for it."""
        sent = 0
        for op, places in sorted(step.items()):
            for operand in self._operands(op):
                sent += operand.sent(places)
                sets, veus, alone = operand.readers(places)
                for number, veu in zip(sets[alone].tolist(), veus[alone].tolist(), strict=True):
                    lies = operand.home[operand.sets[number]]
                    operand.home[operand.sets[number]] = np.where(lies < self._veus, lies, veu)
            for position, tensor in enumerate(self._plan.graph.operators[op].outputs):
                home, shift = self._home(tensor, self._plan.graph.types[tensor])
                written = written_elements(self._plan.kernels[op], position)
                for rtask, veu in places.items():
                    home[expand(written[rtask]) + shift] = veu
        return sent

    def best(self, step: Places) -> Places:
        """Place a step's rTasks, the longest first, where most of their operands lie.

        Returns the step unchanged if that does not send fewer bytes, or if no vEU is free for long enough.
        """
        us = {op: self._plan.rtask_us[self._plan.kernels[op]] or 1e-9 for op in step}

        def load_us(op: int, places: Mapping[int, int]) -> NDArray[np.float64]:
            found_us = np.zeros(self._veus)
            np.add.at(found_us, list(places.values()), us[op])
            return found_us

        left_us = np.full(self._veus, np.sum([load_us(op, places) for op, places in step.items()], axis=0).max())
        found, more = Places(), 0
        for op in sorted(step, key=lambda op: (-us[op], op)):
            operands = tuple(self._operands(op))

            def sent(places: Mapping[int, int], operands: Sequence[_Operand] = operands) -> int:
                return sum(operand.sent(places) for operand in operands)

            options = list(_options(operands, step[op], (left_us / us[op] + 1e-6).astype(np.int64)))
            if not options:
                return step
            found[op] = min(options, key=sent)
            more += sent(found[op]) - sent(step[op])
            left_us -= load_us(op, found[op])
        return found if more < 0 else step

    def _operands(self, operator: int) -> Iterator[_Operand]:
        """Yield the operands of an operator, each as its elements lie now."""
        graph, kernel = self._plan.graph, self._plan.kernels[operator]
        inputs = zip(graph.operators[operator].inputs, kernel.input_types(), strict=True)
        for position, (tensor, kind) in enumerate(inputs):
            home, shift = self._home(tensor, kind)
            elements = read_elements(kernel, position)
            sets = [expand(some) + shift for some in elements.sets]
            same = {some.tobytes(): n for n, some in enumerate(elements.sets)}
            chosen = np.array([same[elements[rtask].tobytes()] for rtask in range(kernel.num_rtasks)])
            lying = np.array([np.bincount(home[some], minlength=self._veus + 1) for some in sets])
            yield _Operand(sets, chosen, home, lying * kind.element_bytes)

    def _home(self, tensor: TensorId, kind: TensorType) -> tuple[Numbers, int]:
        """Return the homes of all elements in a tensor's memory, and the place of its first one there."""
        owner, shift = constant_key(self._plan.graph, tensor, kind.layout)
        if owner not in self._homes:
            size = max(self._plan.graph.types[owner[0]].span, kind.span)
            self._homes[owner] = np.full(size, self._veus, np.int64)
        return self._homes[owner], shift


def _options(operands: Sequence[_Operand], before: Mapping[int, int], free: Numbers) -> Iterator[dict[int, int]]:
    """Yield placements of an operator's rTasks that give each vEU at most `free` of them.

    They are: the present one, if it fits; each rTask where most of its operands lie; and neighbouring rTasks together,
    so that shared operands are sent once.
    """
    rtasks, veus = sorted(before), len(free)
    known = [before[r] for r in rtasks]
    if (np.bincount(known, minlength=veus) <= free).all():
        yield dict(before)
    there = np.zeros((len(rtasks), veus), np.int64)
    for operand in operands:
        there += operand.lying[operand.chosen[rtasks], :veus]
    for size in sorted({1, -(-len(rtasks) // max(int((free > 0).sum()), 1))}):
        together = np.add.reduceat(there, range(0, len(rtasks), size))
        if places := _assigned(together, free // size, known[::size]):
            yield {r: places[n // size] for n, r in enumerate(rtasks)}


def _assigned(there: Numbers, free: Numbers, before: Sequence[int]) -> list[int] | None:
    """Assign a vEU to each row of `there`, [rTask, vEU] bytes: greedily by most bytes, each vEU at most `free` times.

    Bytes that all rTasks read are ignored; on ties an rTask stays where it was. None if there are not enough free
    slots.
    """
    gain = 2 * (there - there.min(axis=0))
    gain[np.arange(len(before)), before] += 1
    rows, columns = np.nonzero(gain)
    order = np.argsort(-gain[rows, columns], kind="stable")
    found, left = dict[int, int](), free.copy()
    for row, veu in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row not in found and left[veu] > 0:
            found[row] = veu
            left[veu] -= 1
    others = iter(np.repeat(np.arange(len(left)), left).tolist())
    places = [found[row] if row in found else next(others, -1) for row in range(len(before))]
    return None if -1 in places else places
