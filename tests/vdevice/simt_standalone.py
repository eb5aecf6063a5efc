"""A program that runs once in a process of its own: its text with a `main`, the file it reads, the memory it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image
from rammer.vdevice.image.arena import ARENA, aligned
from rammer.vdevice.simt.codegen.table import NUMBER
from rammer.vdevice.simt.emulator.compile import host_text
from rammer.vdevice.simt.runtime.streams import SOURCE, checked_streams, port_places

HALF = Path(__file__).with_suffix(".h")  # of the C++ file, which comes last
MAX_PROGRAMS = 64
STALLED = 4  # exit status


def program_text(image: Image) -> str:
    """C++ with `main(file)`; `main(file, "-")` writes its memory to standard output."""
    return host_text(image.files[SOURCE].decode()) + HALF.read_text(encoding="utf-8")


def program_file(image: Image, inputs: Mapping[str, Array], seed: int) -> bytes:
    """`simt_file` of simt_standalone.h and what follows it; arguments are offsets into arena and weights."""
    streams = checked_streams(image)
    header = streams.header
    if streams.num_programs > MAX_PROGRAMS:
        raise DeviceError(f"{streams.num_programs} rPrograms are too many for one file", hint="a smaller model")
    weights = [image.weight(name) for name in header["weights"]]
    starts = _starts(image)
    memory = np.full(starts[-1], 0xFF, np.uint8)
    for w, at in zip(weights, starts, strict=False):
        memory[at : at + w.nbytes] = np.ascontiguousarray(w).reshape(-1).view(np.uint8)
    for port, (base, offset) in next(port_places(image, streams)):
        at = offset if base == ARENA else starts[base] + offset
        memory[at : at + port.type.nbytes] = np.ascontiguousarray(inputs[port.name]).reshape(-1).view(np.uint8)
    offsets = streams.addresses(starts[:-1], 0)
    args = np.where(
        streams.arg_base == NUMBER, offsets - (1 << 62), offsets
    )  # the others will be addresses in the memory
    arrays = [memory, args, streams.instructions, streams.bounds, streams.waits]
    spans = [streams.span(p) for p in range(streams.num_programs)]
    head = [streams.num_veus, header["threads"], header["shared_bytes"], streams.num_programs]
    head += [*(a.nbytes for a in arrays), seed, *spans, *[0] * (MAX_PROGRAMS - len(spans))]
    return b"".join([np.array(head, np.int64).tobytes(), *(np.ascontiguousarray(a).tobytes() for a in arrays)])


def program_outputs(image: Image, memory: bytes) -> dict[str, Array]:
    """Outputs by name, from the memory that a run left."""
    starts = _starts(image)
    _, places = port_places(image, checked_streams(image))
    return {
        port.name: np.frombuffer(
            memory,
            port.type.dtype.numpy,
            int(np.prod(port.type.shape)),
            offset if base == ARENA else starts[base] + offset,
        ).reshape(port.type.shape)
        for port, (base, offset) in places
    }


def _starts(image: Image) -> list[int]:
    """Where each weight begins, behind the arena, and where the last one ends."""
    header = checked_streams(image).header
    sizes = (aligned(image.weight(name).nbytes) for name in header["weights"])
    return [int(n) for n in np.cumsum([aligned(int(header["arena_bytes"])), *sizes])]
