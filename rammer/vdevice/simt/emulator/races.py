"""ThreadSanitizer on a program: every thread of every block is a thread to it, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rammer.errors import DeviceError, ToolchainError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image
from rammer.vdevice.placement import ARENA, aligned
from rammer.vdevice.simt.emulator.compile import host_text, part
from rammer.vdevice.simt.image import SOURCE, checked_streams, port_places, weight
from rammer.vdevice.simt.table import NUMBER

FLAGS = ("-x", "c++", "-std=gnu++17", "-O1", "-g", "-w", "-fsanitize=thread", "-fno-exceptions", "-fno-rtti")
MAX_PROGRAMS = 64
_RACES, _STALLED = 66, 4


def find_races(image: Image, inputs: Mapping[str, Array], *, seed: int = 0, compiler: str = "gcc") -> str:
    """What ThreadSanitizer says about one run; empty if it finds nothing. Slow: for small programs.

    Raises ToolchainError without a gcc that has ThreadSanitizer, DeviceError if the program stalls.
    """
    program = shutil.which(compiler)
    if program is None:
        raise ToolchainError(f"no {compiler} to build with ThreadSanitizer", hint="install gcc with libtsan")
    with tempfile.TemporaryDirectory(prefix="rammer-races-") as folder:
        source, binary, data = (Path(folder, n) for n in ("program.cc", "program", "program.bin"))
        source.write_text(host_text(image.files[SOURCE].decode()) + part("standalone.h"), encoding="utf-8")
        data.write_bytes(_file(image, inputs, seed))
        built = subprocess.run(
            [program, *FLAGS, str(source), "-o", str(binary), "-lm", "-lpthread"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if built.returncode:
            raise ToolchainError(
                f"{compiler} cannot build with ThreadSanitizer:\n{built.stderr[:2000]}", hint="install gcc with libtsan"
            )
        environment = os.environ | {"TSAN_OPTIONS": f"exitcode={_RACES} history_size=7"}
        done = subprocess.run(
            [str(binary), str(data)], capture_output=True, text=True, timeout=600, check=False, env=environment
        )
    if done.returncode in (0, _RACES):
        return done.stderr if done.returncode else ""
    if done.returncode == _STALLED:
        raise DeviceError("the program stalled under ThreadSanitizer", hint="run it on the emulator for a report")
    raise ToolchainError(
        f"ThreadSanitizer ended with {done.returncode}:\n{done.stderr[:2000]}", hint="is ASLR too wide?"
    )


def _file(image: Image, inputs: Mapping[str, Array], seed: int) -> bytes:
    """`simt_file` of standalone.h and what follows it; arguments are offsets into arena and weights."""
    streams = checked_streams(image)
    header = streams.header
    if streams.num_programs > MAX_PROGRAMS:
        raise DeviceError(f"{streams.num_programs} rPrograms are too many to search for races", hint="a smaller model")
    arena = aligned(int(header["arena_bytes"]))
    weights = [weight(image, name) for name in header["weights"]]
    starts = np.cumsum([arena, *(aligned(w.nbytes) for w in weights)])
    memory = np.full(starts[-1], 0xFF, np.uint8)
    for w, at in zip(weights, starts, strict=False):
        memory[at : at + w.nbytes] = np.ascontiguousarray(w).reshape(-1).view(np.uint8)
    for port, (base, offset) in next(port_places(image, streams)):
        at = offset if base == ARENA else int(starts[base]) + offset
        memory[at : at + port.type.nbytes] = np.ascontiguousarray(inputs[port.name]).reshape(-1).view(np.uint8)
    offsets = streams.addresses(starts[:-1].tolist(), 0)
    args = np.where(streams.arg_base == NUMBER, ~offsets, offsets)  # the others will be addresses in the memory
    arrays = [memory, args, streams.instructions, streams.bounds, streams.waits]
    spans = [streams.span(p) for p in range(streams.num_programs)]
    head = [streams.num_veus, header["threads"], header["shared_bytes"], streams.num_programs]
    head += [*(a.nbytes for a in arrays), seed, *spans, *[0] * (MAX_PROGRAMS - len(spans))]
    return b"".join([np.array(head, np.int64).tobytes(), *(np.ascontiguousarray(a).tobytes() for a in arrays)])
