"""Convert the clocks that a profiled text records into times of slots. Paper: §5.2.2, §5.2.3."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rammer.errors import DeviceError
from rammer.ir.tensor import Array
from rammer.vdevice.base import SlotTimes
from rammer.vdevice.simt.codegen.table import KEEP, LINE, Streams

CLOCKS = 4  # of an instruction, 64 bits each


def profiled(text: str) -> str:
    """Return the text with clocks enabled. Raises DeviceError for a text that has none."""
    if "  MK_STAMP(" not in text:
        raise DeviceError("this program has no clocks", hint="compile it again")
    return f"#define MK_PROFILE 1\n{text}"


def state_words(streams: Streams) -> int:
    """Return the 32-bit words of the state of a profiled text."""
    return LINE * (1 + 2 * streams.num_veus) + 2 * CLOCKS * len(streams.instructions)


def slot_times(
    streams: Streams, state: Array, total_us: float | None = None, *, ticks_per_ns: float = 1.0, emulated: bool = False
) -> SlotTimes:
    """Return begin and end of every slot, in microseconds.

    `total_us`: of the whole run with its launches; by default from first to last clock. `ticks_per_ns`: of the clock
    that all vEUs share.
    """
    clocks = state[LINE * (1 + 2 * streams.num_veus) :].view(np.uint64).reshape(-1, CLOCKS)
    programs, operators = [], []
    first = min(int(clocks[end - 1, 0]) for end in streams.bounds[1:])
    nothing = np.empty((0, 2)), np.empty(0, np.int32)
    for program in range(streams.num_programs):
        lanes, numbers = [], []
        for veu in range(streams.num_veus):
            n = program * streams.num_veus + veu
            low, end = int(streams.bounds[n]), int(streams.bounds[n + 1]) - 1
            times, owners = nothing  # most lanes are empty if each operator has its own launch
            if end > low:
                microseconds = _microseconds(clocks[low:end], clocks[end], first)
                times, owners = _lane(streams, low, end, microseconds / ticks_per_ns)
            lanes.append(times)
            numbers.append(owners)
        programs.append(tuple(lanes))
        operators.append(tuple(numbers))
    if total_us is None:
        total_us = (max(int(clocks[end - 1, 2]) for end in streams.bounds[1:]) - first) / ticks_per_ns / 1e3
    return SlotTimes(tuple(programs), tuple(operators), total_us, emulated)


def _microseconds(clocks: Array, anchors: Array, first: int) -> NDArray[np.float64]:
    """Return [slots, 3] since `first`, by interpolation: a vEU's own clock is finer than the shared one at its ends."""
    began, clock_began, ended, clock_ended = (int(a) for a in anchors)
    rate = (ended - began) / max(clock_ended - clock_began, 1)
    return ((clocks[:, :3] - np.uint64(clock_began)).astype(np.float64) * rate + (began - first)) / 1e3


def _lane(
    streams: Streams, low: int, end: int, times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return times and operators of a lane's slots: split merged waits off their rTasks, drop copies."""
    function = streams.instructions[low:end, 0]
    waits = streams.instructions[low:end, 5] > 0
    others = (~waits | (function >= 0)) & (function != KEEP)
    at = np.arange(end - low)
    number = np.concatenate([at[waits], at[others]])
    ready = np.concatenate([times[waits][:, :2], times[others][:, 1:]])
    owners = np.concatenate([np.full(int(waits.sum()), -1), streams.operators[low:end][others]])
    order = np.argsort(number, kind="stable")
    return ready[order], owners[order].astype(np.int32)
