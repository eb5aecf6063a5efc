"""Make an image of a plan: the program's text, the streams that vEUs walk, and packed constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.remembered import memoized
from rammer.ir.tensor import Array
from rammer.planner.scratch_allocation import resident_pieces, scratch_ends
from rammer.vdevice.base import Image, ports_of
from rammer.vdevice.image.arena import SCRATCH, aligned
from rammer.vdevice.image.placement import ArenaPlacement, Operands
from rammer.vdevice.simt.codegen.megakernel import program_text
from rammer.vdevice.simt.codegen.messages import Messages, messages_of
from rammer.vdevice.simt.codegen.prefetch import prefetch_text
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.printer import EmittedFunction, emit
from rammer.vdevice.simt.codegen.residency import ConstantResidency, make_resident
from rammer.vdevice.simt.codegen.slices import VECTOR_BYTES, reading_copies
from rammer.vdevice.simt.codegen.table import ABI, KEEP_ARGS, NUMBER, Streams, Task, header_bytes, streams_of
from rammer.vdevice.simt.runtime.streams import SOURCE, TABLE, fingerprint


class ProgramFunction(NamedTuple):
    """An rKernel of the plan, its variant with rewritten loads (`built`), and the emitted text of that."""

    kernel: RKernel
    built: RKernel
    emitted: EmittedFunction


@dataclass(frozen=True)
class SimtProgram:
    """An emitted plan: text, tables, constants, and the threads and shared memory of its blocks."""

    text: str
    streams: Streams
    weights: dict[str, Array]
    notes: tuple[str, ...] = ()  # decisions made here, for the log
    functions: tuple[ProgramFunction, ...] = ()  # by the function number of instructions

    @property
    def threads(self) -> int:
        return int(self.streams.header["threads"])

    @property
    def shared_bytes(self) -> int:
        return int(self.streams.header["shared_bytes"])


def make_program(plan: ExecutionPlan, dialect: Dialect, *, resident: bool = True) -> SimtProgram:
    """Emit a plan. Raises DeviceError, LoweringError.

    `resident`: keep constants that a vEU reads again in its shared memory.
    """
    graph, spec = plan.graph, plan.spec
    places = ArenaPlacement(plan)
    operands = [places.operands(n) for n in range(len(graph.operators))]
    scratch = max((k.scratch_bytes for k in plan.kernels), default=0)
    held = resident_pieces(plan, HappensBefore(plan.programs)) if places.memory.in_scratch else []
    base = max(aligned(scratch), max((aligned(s.end) for s in held), default=0))
    kept = ConstantResidency(end=base)
    messages = messages_of(plan)
    below = messages.boxes[0] if messages.boxes else spec.scratch_bytes
    if resident:
        inputs_of = [mine.places[0][len(op.outputs) :] for op, mine in zip(graph.operators, operands, strict=True)]
        bases = [aligned(k.scratch_bytes) for k in plan.kernels]
        ends = scratch_ends(plan, held) if held else {}
        kept = make_resident(plan, inputs_of, bases, below, ends)
        kept.end = max(aligned(kept.end), base)
    if messages.boxes:
        kept.end = spec.scratch_bytes
    told = {*messages.received, *messages.sent}
    most_sent = max((len(messages.arguments(uid)[0]) for uid in told), default=0)
    max_args = max([len(mine.places[0]) for mine in operands] + [KEEP_ARGS] * bool(kept.loads), default=0) + most_sent
    most = max([max_args, *(k.num_threads for k in plan.kernels)])
    block = -(-most // dialect.subgroup_size) * dialect.subgroup_size
    if block > spec.max_threads:
        raise DeviceError(f"an operator has {max_args} arguments, a vEU {spec.max_threads} threads", hint="split it")
    calls = _TaskCalls(plan, dialect, block, operands, kept, messages)
    arrays = streams_of(plan, calls.task, calls.keeps())
    common = places.header()
    weights = places.pack(lambda nbytes: np.zeros(nbytes, np.uint8))
    header = {
        **common,
        "abi": ABI,
        "language": dialect.language,
        "num_kernels": len(calls.functions),
        "threads": block,
        "max_args": max_args,
        "scratch_bytes": scratch,
        "resident_bytes": kept.nbytes,
        "shared_bytes": header_bytes(max_args) + aligned(kept.end),
        "weights": list(weights),
    }
    if messages.boxes:
        header["cluster"] = messages.cluster
    if dialect.uncached:
        header["uncached"] = True
    arg_base, offset = np.array(calls.args, np.int64).reshape(-1, 2).T
    streams = Streams(header, **arrays, arg_base=arg_base.astype(np.int32), arg_offset=offset)
    emitted = [f.emitted for f in calls.functions]
    text = program_text(emitted, dialect, block, max_args, copies=bool(kept.loads), messages=messages)
    notes = [str(kept)] * bool(kept.loads) + [messages.note] * bool(messages.note)
    if held:
        nbytes, veus = sum(s.end - s.begin for s in held) / 1024, len({s.lane.veu for s in held})
        notes.append(
            f"kept: {len(places.memory.in_scratch)} results, {nbytes:.0f} KiB, stay in {spec.resident} of {veus} vEUs"
        )
    return SimtProgram(text, streams, weights, tuple(notes), tuple(calls.functions))


class _TaskCalls:
    """Emitted functions and arguments of a plan's rTasks. Equal calls are stored once."""

    def __init__(
        self,
        plan: ExecutionPlan,
        dialect: Dialect,
        block: int,
        operands: Sequence[Operands],
        kept: ConstantResidency,
        messages: Messages,
    ) -> None:
        self.functions: list[ProgramFunction] = []
        self.args: list[tuple[int, int]] = []
        self._plan, self._dialect, self._block, self._operands, self._kept = plan, dialect, block, operands, kept
        self._messages = messages
        self._numbers: dict[tuple[object, ...], int] = {}
        self._tasks: dict[tuple[object, ...], Task] = {}
        slots = (slot for program in plan.programs for lane in program.lanes for slot in lane)
        for uid in sorted(slot.uid for slot in slots if isinstance(slot, RTask)):
            self.task(uid)  # in an order, and so with a text, that does not depend on the schedule

    def task(self, uid: TaskUid) -> Task:
        """Return the call of an rTask, with copies instead of operands where shared memory holds them."""
        n = uid.operator_id
        copies = tuple(sorted(self._kept.copies.get(uid, {}).items()))
        more, received, sent = self._messages.arguments(uid)
        chosen = self._operands[n].chosen[uid.rtask_id]
        key = n, chosen, copies, more
        if key not in self._tasks:
            kernel, mine = self._plan.kernels[n], list(self._operands[n].places[chosen])
            outputs = len(self._plan.graph.operators[n].outputs)
            in_scratch = frozenset(k for k, (base, _) in enumerate(mine) if base == SCRATCH)
            unaligned = frozenset(k for k, (_, at) in enumerate(mine) if at % VECTOR_BYTES)
            for position, at in copies:
                mine[outputs + position] = NUMBER, at
            positions = frozenset(position for position, _ in copies)
            unaligned -= {outputs + position for position in positions}
            around = (len(mine), received, sent) if more else (0, 0, 0)
            function = self._function(kernel, unaligned, in_scratch, positions, around)
            mine += more
            self._tasks[key] = Task(function, len(self.args), len(mine))
            self.args += mine
        return self._tasks[key]

    @memoized
    def _function(
        self,
        kernel: RKernel,
        unaligned: frozenset[int],
        in_scratch: frozenset[int],
        positions: frozenset[int],
        messages: tuple[int, int, int],
    ) -> int:
        copied = in_scratch | {len(kernel.operation.outputs) + position for position in positions}
        used = reading_copies(kernel, positions) if positions else kernel
        made = emit(used, self._dialect, self._block, unaligned, copied)
        if self._dialect.asks_ahead:
            name, text = prefetch_text(kernel, positions, self._block)
            made = replace(made, prefetch=name, prefetch_text=text)
        key = made.symbol, made.prefetch, messages
        if key not in self._numbers:
            self._numbers[key] = len(self.functions)
            self.functions.append(ProgramFunction(kernel, used, replace(made, messages=messages)))
        return self._numbers[key]

    def keeps(self) -> dict[TaskUid, list[int]]:
        """Append the arguments of each KEEP; return the first argument numbers by the rTask that follows them."""
        found: dict[TaskUid, list[int]] = {}
        for uid, copied in self._kept.loads.items():
            for load in copied:
                run = load.run
                numbers = (run.target, run.nbytes, run.count, run.source_step, run.target_step, run.unit)
                found.setdefault(uid, []).append(len(self.args))
                self.args += [(load.constant, run.source), *((NUMBER, n) for n in numbers)]
        return found


def make_image(plan: ExecutionPlan, program: SimtProgram, files: dict[str, bytes]) -> Image:
    """Return the image of an emitted plan; `files` holds the compiler's output."""
    return Image(
        plan.spec.name,
        fingerprint(plan.spec.name, plan.spec.arch),
        *ports_of(plan.graph),
        {TABLE: program.streams.to_bytes(), SOURCE: program.text.encode(), **files},
        program.weights,
        replace(plan, notes=(*plan.notes, *program.notes)),
    )
