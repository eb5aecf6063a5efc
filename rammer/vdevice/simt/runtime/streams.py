"""Read the streams of an image, and what a run of them reports: running needs this, and nothing that emits code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rammer.errors import DeviceError, InputError
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image, Port
from rammer.vdevice.image.arena import PortBinding, bound_ports
from rammer.vdevice.simt.codegen.table import ABI, LINE, Streams

TABLE, SOURCE, RESOURCES = "table.bin", "program.cu", "resources.json"  # the last: needs of the machine code


def fingerprint(target: str, arch: str) -> str:
    """Return the string that must match between an image and the device that loads it."""
    return f"{target}-abi{ABI}-{arch}"


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
