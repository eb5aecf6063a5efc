"""Choose how much each rKernel loads before it waits: as much as fits in registers. Beyond the paper.

Known as: register pressure, spilling. ptxas and clang report one number of registers for a whole program, so the
program is compiled first. If it spills more than without early loads, each function is compiled alone in the
program's loop, and those that spill there load less. If the program still spills, the rKernels that alone need the
most registers load nothing early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from rammer import config
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.simt.codegen.early import early_words
from rammer.vdevice.simt.codegen.image import ProgramFunction, SimtProgram, make_program
from rammer.vdevice.simt.codegen.megakernel import program_text
from rammer.vdevice.simt.codegen.prelude import Dialect
from rammer.vdevice.toolchain import in_parallel, parallel_jobs

LEAST_EARLY = 16  # words per thread that justify a separate text
TRIES = 2  # programs compiled, each with less room: seconds each


class Alone(NamedTuple):
    """Registers and spilled bytes of a thread, for an rKernel alone."""

    spill_bytes: int
    registers: int


class MachineCode(Protocol):
    """The result of compiling a text."""

    @property
    def data(self) -> bytes: ...

    @property
    def resources(self) -> Any:
        """Return its needs, `Platform.resources`: `registers` and `spill_bytes` of a thread, and more."""


def compiled(
    plan: ExecutionPlan, dialect: Dialect, compile: Callable[[str], MachineCode]
) -> tuple[SimtProgram, MachineCode]:
    """Return the program with the most early loads that spills no more than the program without any.

    Raises ToolchainError, DeviceError.
    """

    def made(rooms: Mapping[RKernel, int] | None) -> tuple[SimtProgram, MachineCode, int]:
        program = make_program(plan, dialect, rooms=rooms)
        code = compile(program.text)
        return program, code, code.resources.spill_bytes

    asked = config.integer("RAMMER_EARLY_WORDS")
    program, code, spilled = made(None if asked is None else dict.fromkeys(plan.kernels, asked))
    if asked is not None or not (spilled and program.early):
        return program, code
    bare, bare_code, allowed = made({})
    early = sorted(program.early, key=lambda k: k.name) if spilled > allowed else []

    def alone(rooms: Mapping[RKernel, int]) -> dict[RKernel, Alone]:
        """Return the needs of each of these rKernels alone in the loop."""
        part = make_program(plan, dialect, rooms=rooms)
        functions = [f for f in part.functions if f.kernel in early and (f.kernel in part.early or not rooms)]
        arguments = int(part.streams.header["max_args"])

        def needs(function: ProgramFunction) -> Alone:
            text = program_text([function.emitted], dialect, part.threads, arguments, copies=True)
            resources = compile(text).resources
            return Alone(resources.spill_bytes, resources.registers)

        found: dict[RKernel, Alone] = {}
        for function, own in in_parallel(needs, functions, parallel_jobs()):
            found[function.kernel] = max(found.get(function.kernel, own), own)
        return found

    without, rooms, registers = alone({}) if early else {}, dict[RKernel, int](), dict[RKernel, int]()
    for room in _smaller(early_words(plan.spec.registers, plan.spec.lanes)):
        left = [k for k in early if k not in rooms]
        for kernel, own in alone(dict.fromkeys(left, room)).items() if left else ():
            if own.spill_bytes <= without[kernel].spill_bytes:
                rooms[kernel], registers[kernel] = room, own.registers
    for _ in range(TRIES):
        if spilled <= allowed or not rooms:
            break
        program, code, spilled = made(rooms)
        fullest = max(registers[k] for k in rooms)
        rooms = {k: room for k, room in rooms.items() if registers[k] < fullest}
    return (program, code) if spilled <= allowed else (bare, bare_code)


def _smaller(room: int) -> Iterator[int]:
    """Yield the room, a quarter of it and so on, down to `LEAST_EARLY`."""
    while room >= LEAST_EARLY:
        yield room
        room //= 4
