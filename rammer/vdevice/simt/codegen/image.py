"""Make an image of a plan: the program's text, the streams that vEUs walk, and packed constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rammer.errors import DeviceError, InputError
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.remembered import memoized
from rammer.ir.tensor import Array
from rammer.planner.scratch_allocation import resident_pieces, scratch_ends
from rammer.vdevice.base import Image, Port, ports_of
from rammer.vdevice.image.arena import SCRATCH, PortBinding, aligned, bound_ports
from rammer.vdevice.image.placement import ArenaPlacement, Operands
from rammer.vdevice.simt.codegen.megakernel import header_bytes, program_text
from rammer.vdevice.simt.codegen.prefetch import prefetch_text
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.simt.codegen.printer import EmittedFunction, emit
from rammer.vdevice.simt.codegen.residency import ConstantResidency, make_resident
from rammer.vdevice.simt.codegen.slices import VECTOR_BYTES, reading_copies
from rammer.vdevice.simt.codegen.table import ABI, KEEP_ARGS, LINE, NUMBER, Streams, Task, streams_of

TABLE, SOURCE, RESOURCES = "table.bin", "program.cu", "resources.json"  # the last: needs of the machine code


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


def fingerprint(target: str, arch: str) -> str:
    """Return the string that must match between an image and the device that loads it."""
    return f"{target}-abi{ABI}-{arch}"


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
    if resident:
        inputs_of = [mine.places[0][len(op.outputs) :] for op, mine in zip(graph.operators, operands, strict=True)]
        bases = [aligned(k.scratch_bytes) for k in plan.kernels]
        ends = scratch_ends(plan, held) if held else {}
        kept = make_resident(plan, inputs_of, bases, spec.scratch_bytes, ends)
        kept.end = max(aligned(kept.end), base)
    max_args = max([len(mine.places[0]) for mine in operands] + [KEEP_ARGS] * bool(kept.loads), default=0)
    most = max([max_args, *(k.num_threads for k in plan.kernels)])
    block = -(-most // dialect.subgroup_size) * dialect.subgroup_size
    if block > spec.max_threads:
        raise DeviceError(
            f"an operator has {max_args} arguments, a vEU {spec.max_threads} threads", hint="split the operator"
        )
    calls = _TaskCalls(plan, dialect, block, operands, kept)
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
    arg_base, offset = np.array(calls.args, np.int64).reshape(-1, 2).T
    streams = Streams(header, **arrays, arg_base=arg_base.astype(np.int32), arg_offset=offset)
    emitted = [f.emitted for f in calls.functions]
    text = program_text(emitted, dialect, block, max_args, copies=bool(kept.loads))
    notes = [str(kept)] if kept.loads else []
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
    ) -> None:
        self.functions: list[ProgramFunction] = []
        self.args: list[tuple[int, int]] = []
        self._plan, self._dialect, self._block, self._operands, self._kept = plan, dialect, block, operands, kept
        self._numbers: dict[tuple[str, str], int] = {}
        self._tasks: dict[tuple[int, int, tuple[tuple[int, int], ...]], Task] = {}
        slots = (slot for program in plan.programs for lane in program.lanes for slot in lane)
        for uid in sorted(slot.uid for slot in slots if isinstance(slot, RTask)):
            self.task(uid)  # in an order, and so with a text, that does not depend on the schedule

    def task(self, uid: TaskUid) -> Task:
        """Return the call of an rTask, with copies instead of operands where shared memory holds them."""
        n = uid.operator_id
        copies = tuple(sorted(self._kept.copies.get(uid, {}).items()))
        key = n, self._operands[n].chosen[uid.rtask_id], copies
        if key not in self._tasks:
            kernel, mine = self._plan.kernels[n], list(self._operands[n].places[key[1]])
            outputs = len(self._plan.graph.operators[n].outputs)
            in_scratch = frozenset(k for k, (base, _) in enumerate(mine) if base == SCRATCH)
            unaligned = frozenset(k for k, (_, at) in enumerate(mine) if at % VECTOR_BYTES)
            for position, at in copies:
                mine[outputs + position] = NUMBER, at
            positions = frozenset(position for position, _ in copies)
            unaligned -= {outputs + position for position in positions}
            function = self._function(kernel, unaligned, in_scratch, positions)
            self._tasks[key] = Task(function, len(self.args), len(mine))
            self.args += mine
        return self._tasks[key]

    @memoized
    def _function(
        self, kernel: RKernel, unaligned: frozenset[int], in_scratch: frozenset[int], positions: frozenset[int]
    ) -> int:
        copied = in_scratch | {len(kernel.operation.outputs) + position for position in positions}
        used = reading_copies(kernel, positions) if positions else kernel
        made = emit(used, self._dialect, self._block, unaligned, copied)
        if self._dialect.asks_ahead:
            name, text = prefetch_text(kernel, positions, self._block)
            made = replace(made, prefetch=name, prefetch_text=text)
        if (made.symbol, made.prefetch) not in self._numbers:
            self._numbers[made.symbol, made.prefetch] = len(self.functions)
            self.functions.append(ProgramFunction(kernel, used, made))
        return self._numbers[made.symbol, made.prefetch]

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


def checked_streams(image: Image) -> Streams:
    """Return the streams of an image, checked. Raises ArtifactError."""
    streams = Streams.from_bytes(image.file(TABLE))
    same = streams.header.get("abi") == ABI
    image.check_fingerprint(fingerprint(image.target, str(streams.header["arch"])) if same else "")
    return streams


def port_places(image: Image, streams: Streams) -> Iterator[list[tuple[Port, tuple[int, int]]]]:
    """Yield inputs, then outputs: each port with its (base, offset)."""
    for ports, places in ((image.inputs, "inputs"), (image.outputs, "outputs")):
        yield [(p, (int(b), int(o))) for p, (b, o) in zip(ports, streams.header[places], strict=True)]


def bound_in(image: Image, streams: Streams) -> dict[str, PortBinding]:
    """Return, per port that may lie outside of the arena, the arguments that refer to it."""
    ports = [(p.name, p.type.nbytes, place) for places in port_places(image, streams) for p, place in places]
    return bound_ports(ports, streams.header.get("alone", ()), streams.arg_base, streams.arg_offset)


def failure(streams: Streams, state: Array) -> InputError | DeviceError | None:
    """Return the error that the state words of a run report, or None."""
    if state[2]:
        program, veu, order, on_veu, on_order, done = (int(n) for n in state[4:10].astype(np.int32))
        operator = _name(streams, program, on_veu, on_order)
        return DeviceError(
            f"rProgram {program}: vEU {veu}, order {order}, waited in vain for vEU {on_veu}, order {on_order} "
            f"({operator}); that vEU has published {max(done, 0)} of its slots{_stopped(streams, state)}",
            hint="a slow device needs a larger RAMMER_WATCHDOG_SECONDS; otherwise the plan has a deadlock",
        )
    if state[3]:
        lines = _lines(streams, state)
        bad = sorted((int(line[1]), int(line[0]) - 1, veu) for veu, line in enumerate(lines) if line[0])
        program, order, veu = bad[0]
        return InputError(
            f"{_name(streams, program, veu, order)}: index out of range",
            hint="an input that is used as an index is too large or too small",
        )
    return None


def _lines(streams: Streams, state: Array) -> Array:
    """Return the report line of every vEU."""
    veus = streams.num_veus
    return state[LINE * (1 + veus) : LINE * (1 + 2 * veus)].reshape(veus, LINE)


def _stopped(streams: Streams, state: Array) -> str:
    lines = _lines(streams, state)
    waiting = [f"{veu}:{int(line[2]) - 1}" for veu, line in enumerate(lines) if line[2]]
    return f"; waiting slots (vEU:order): {', '.join(waiting[:8])}{' …' if len(waiting) > 8 else ''}" if waiting else ""


def _name(streams: Streams, program: int, veu: int, order: int) -> str:
    number = streams.operator_at(program, veu, order)
    return str(streams.header["operators"][number]) if number >= 0 else "a barrier"
