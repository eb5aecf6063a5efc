"""Emit the HIP prelude for clang without headers or libraries: primitives of AMD GPUs, float and double functions."""

from __future__ import annotations

from rammer.ir.device import VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.vdevice.ctext import functions
from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.simt.codegen.prelude import TYPES, Dialect

# A wave that has passed the barrier may still have stores in flight: every thread releases before the barrier,
# and acquires after it. Polls are relaxed, so that they do not empty the cache each time.
PRIMITIVES = (
    text_of("rammer.vdevice.rocm", "text", "qualifiers.h")
    + TYPES
    + text_of("rammer.vdevice.rocm", "text", "primitives.h")
)

MATH = text_of("rammer.vdevice.rocm", "text", "math.h")
MATH += functions.instance(functions.ERF, prefix="mk_f")


def hip(wavefront_size: int, instructions: tuple[Instruction, ...] = (), *, uncached: bool = False) -> Dialect:
    """Return the HIP dialect for GPUs whose waves have 64 or 32 threads."""
    return Dialect(
        "hip",
        "#define MK_UNCACHED\n" * uncached + PRIMITIVES + MATH,
        partial_sync=False,
        counted_sync=True,
        restrict_arguments=False,
        subgroup_size=wavefront_size,
        instructions=instructions,
        units=text_of("rammer.vdevice.rocm", "text", "matrix_cores.h"),
        uncached=uncached,
    )


def hip_of(spec: VDeviceSpec) -> Dialect:
    """Return the HIP dialect of a GPU."""
    return hip(spec.subgroup_size, spec.instructions, uncached=spec.uncached)
